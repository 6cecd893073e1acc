"""Which GPU, and which node, of those where a request fits."""
