"""What ``/metrics`` of the node agent says: what it counts itself, and what the exporter reads when it is asked."""

import importlib
from collections.abc import Callable
from typing import Any

from gpushare.nodeagent.footprint import trim
from gpushare.nodeagent.gpu_readings import Readings
from gpushare.nodeagent.metrics import Metrics


class Figures:
    """``read``: the arguments of ``exporter.Sources`` but ``readings``, asked for at the first scrape."""

    def __init__(self, metrics: Metrics, read: Callable[[], dict[str, Any]]) -> None:
        self.readings = Readings()
        self._metrics = metrics
        self._read = read
        self._exporter: Any = None
        self._sources: Any = None

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format 0.0.4."""
        first = self._exporter is None
        if first:
            # Only where somebody scrapes: a process at its memory's budget does without what nobody asks for.
            self._exporter = importlib.import_module("gpushare.nodeagent.exporter")
            self._sources = self._exporter.Sources(readings=self.readings, **self._read())
        told: list[str] = self._exporter.lines(self._sources)
        text = self._metrics.exposition() + "".join(f"{line}\n" for line in told).encode(errors="replace")
        if first:
            # To load a module takes five times what it leaves.
            trim()
        return text
