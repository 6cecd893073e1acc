"""The container runtime: how GPUs and libraries get into containers."""
