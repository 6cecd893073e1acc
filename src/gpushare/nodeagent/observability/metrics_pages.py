"""The node agent's metrics endpoints."""

from collections.abc import Callable, Iterable

from gpushare.nodeagent.observability import dcgm_exporter, gpu_metrics
from gpushare.nodeagent.observability.metrics import Metrics
from gpushare.nodeagent.observability.snapshot import Sources


class MetricsPages:
    """``update`` sets those of ``metrics`` that are only known at the time of a scrape."""

    def __init__(self, metrics: Metrics, update: Callable[[], None], sources: Sources) -> None:
        self._metrics = metrics
        self._update = update
        self._sources = sources

    @property
    def pages(self) -> dict[str, Callable[[], bytes]]:
        """By path, in Prometheus' text format 0.0.4."""
        return {"/metrics": self.exposition, "/metrics/dcgm": self.dcgm}

    def exposition(self) -> bytes:
        """Our own names."""
        self._update()
        return self._metrics.exposition() + _encoded(gpu_metrics.lines(self._sources))

    def dcgm(self) -> bytes:
        """The names of NVIDIA's DCGM exporter and of ACK's."""
        return _encoded(dcgm_exporter.lines(self._sources))


def _encoded(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode(errors="replace")
