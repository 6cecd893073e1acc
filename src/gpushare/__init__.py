"""Shared GPU scheduling for any Kubernetes cluster."""

__version__ = "0.1.0"
