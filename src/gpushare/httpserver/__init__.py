"""What the roles that answer HTTP share: probes and metrics, and a uvicorn server in our own event loop."""
