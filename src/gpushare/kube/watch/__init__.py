"""Following collections with list and watch."""
