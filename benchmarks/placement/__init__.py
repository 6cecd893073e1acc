"""The percentage of a cluster's GPUs that each placement policy allocates: the public openb traces, replayed through the ledger."""
