"""How much of a cluster's GPUs each placement policy gives out: the public openb traces, replayed through the ledger."""
