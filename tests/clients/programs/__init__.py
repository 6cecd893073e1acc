"""What the clients do, one check a process, started by path with the clients' own Python: ``python CLIENT.py CHECK LIMIT_BYTES``; 0: no limit.

No check looks at what a kernel computed: on the stand-in driver none computes anything. Copies and memsets do move bytes.
"""
