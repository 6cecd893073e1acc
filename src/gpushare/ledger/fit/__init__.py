"""Where a request fits, and the reason for each node where it does not."""
