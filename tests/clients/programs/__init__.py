"""The clients' checks, one per process, started by path with the clients' own Python: ``python CLIENT.py CHECK LIMIT_BYTES``; 0: no limit.

No check examines a kernel's result: on the fake driver kernels compute nothing. Copies and memsets do move bytes.
"""
