"""The extender's HTTP interface."""
