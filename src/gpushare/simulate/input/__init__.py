"""Manifests, lists and shapes that a simulation reads."""
