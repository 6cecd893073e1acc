"""Where ``kubectl inspect cgpu`` reads from: kubectl, scheduler, node agents, Prometheus."""
