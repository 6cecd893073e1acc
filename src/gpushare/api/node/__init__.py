"""Nodes: GPUs, mode, topology, startup taint."""
