"""What nodes have and say of themselves: GPUs, mode, topology, start-up taint."""
