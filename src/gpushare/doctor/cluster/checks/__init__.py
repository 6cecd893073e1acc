"""Checks of a cluster, a module per subject."""
