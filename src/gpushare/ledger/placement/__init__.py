"""Which GPU and which node are chosen of those that a request fits."""
