"""A live, read-only page of the cluster's GPU allocations, and of pending pods with their reasons."""
