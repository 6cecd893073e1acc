"""Features of the scheduler, a folder each."""
