"""NVIDIA's driver on the node: discovery, health, telemetry, process usage."""
