"""Collections followed by list and watch."""
