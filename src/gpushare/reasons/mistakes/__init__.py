"""Likely mistakes in manifests: valid for Kubernetes, but no node can serve them. No I/O."""
