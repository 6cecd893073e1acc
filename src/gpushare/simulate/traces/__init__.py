"""Traces of arrivals, replayed."""
