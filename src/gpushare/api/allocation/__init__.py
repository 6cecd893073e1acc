"""Allocations, and the annotations that record them."""
