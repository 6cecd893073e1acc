"""What would let a pending pod run."""
