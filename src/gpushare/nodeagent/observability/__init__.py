"""Metrics, probes and usage that a node agent serves."""
