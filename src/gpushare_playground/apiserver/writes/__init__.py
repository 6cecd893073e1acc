"""Processing of objects that are created, changed or deleted."""
