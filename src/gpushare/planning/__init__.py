"""Plans over plain numbers, shared by the ledger and by those that show what it would do. Pure."""
