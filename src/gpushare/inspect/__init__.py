"""``kubectl inspect cgpu``: who holds how much of which GPU, as a table, in detail, or for programs.

Reads the cluster through ``kubectl get --raw``, so that every way of signing in that kubectl knows works
here too. Nothing is imported that a table does not need: the command is typed by people who wait for it.
"""
