"""What happens to an object that is created, changed or deleted."""
