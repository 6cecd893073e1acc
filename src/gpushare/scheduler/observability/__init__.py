"""Metrics, events and logs of the scheduler."""
