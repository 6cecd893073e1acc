"""What would let a pending pod run, each tried in a ledger of its own before it is suggested."""
