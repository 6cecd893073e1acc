"""What the dashboard shows: read from scheduler, node agents and API server, and kept for a while."""
