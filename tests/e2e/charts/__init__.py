"""The charts alone, without nodes: what helm renders, and how a real API server accepts it."""
