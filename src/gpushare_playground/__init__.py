"""A complete cluster in one process tree, with simulated GPUs: the product's real processes; the rest is simulated."""
