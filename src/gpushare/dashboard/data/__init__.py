"""The dashboard's data, read from scheduler, node agents and API server, and cached."""
