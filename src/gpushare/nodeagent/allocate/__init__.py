"""Allocate: which pod the kubelet calls for, which GPU it gets, and what its container receives."""
