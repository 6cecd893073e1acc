"""Data sources of ``kubectl inspect cgpu``: kubectl, scheduler, node agents, Prometheus."""
