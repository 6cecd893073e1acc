"""Allocate: which pod the kubelet asks for, which GPU it gets, and what its container is given."""
