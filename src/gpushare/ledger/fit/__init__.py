"""Where a request fits, and why it does not fit elsewhere."""
