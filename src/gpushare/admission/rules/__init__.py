"""What admission checks and fills in on pods that request a GPU."""
