"""What ``kubectl inspect cgpu`` shows: a module per table or document."""
