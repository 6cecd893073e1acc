"""Likely mistakes in manifests: valid for Kubernetes, served by no node. Pure."""
