"""Scheduling in virtual time, with the scheduler's own code."""
