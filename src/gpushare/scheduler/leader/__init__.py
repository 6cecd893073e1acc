"""Which replica decides, and what the next one reads before it does."""
