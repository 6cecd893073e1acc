"""Allocations compared with what the kubelet reports, and corrected."""
