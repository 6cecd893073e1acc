"""A page that shows who holds what of the cluster's GPUs, who waits and why: read-only, live."""
