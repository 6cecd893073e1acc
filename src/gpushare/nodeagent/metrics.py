"""What the node agent counts, for Prometheus."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_ALLOCATE_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0)


class Metrics:
    """All metrics of one process, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.allocations = Counter(
            "gpushare_nodeagent_allocations",
            "Containers that were given devices.",
            ["resource"],
            registry=self._registry,
        )
        self.failures = Counter(
            "gpushare_nodeagent_allocation_failures",
            "Allocate and GetPreferredAllocation calls that were refused.",
            ["resource"],
            registry=self._registry,
        )
        self.corrections = Counter(
            "gpushare_nodeagent_corrections",
            "Pods whose record was changed to the GPU that they really have.",
            registry=self._registry,
        )
        self.registrations = Counter(
            "gpushare_nodeagent_registrations",
            "Registrations with the kubelet.",
            ["resource"],
            registry=self._registry,
        )
        self.devices = Gauge(
            "gpushare_nodeagent_devices",
            "Devices that are advertised.",
            ["resource", "health"],
            registry=self._registry,
        )
        self.allocate_seconds = Histogram(
            "gpushare_nodeagent_allocate_seconds",
            "How long Allocate took.",
            ["resource"],
            buckets=_ALLOCATE_BUCKETS_S,
            registry=self._registry,
        )

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)
