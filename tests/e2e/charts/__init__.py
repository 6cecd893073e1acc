"""The charts alone, without nodes: what helm makes of them, and how a real API server takes it."""
