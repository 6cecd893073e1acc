"""``kubectl inspect cgpu``: GPU allocations per pod, as a table, in detail, or as a document for programs.

Reads the cluster through ``kubectl get --raw``, so every authentication method of kubectl works. It is an interactive command:
modules are imported only where they are needed, to keep its start fast.
"""
