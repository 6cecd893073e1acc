"""The node agent's pages of metrics: its own, and what its exporters read at a scrape."""

import importlib
from collections.abc import Callable
from typing import Any

from gpushare.nodeagent.driver.telemetry import Readings
from gpushare.nodeagent.memory_trim import trim
from gpushare.nodeagent.observability.metrics import Metrics


class Figures:
    """``count`` puts into ``metrics`` what is known at the moment of a scrape alone. ``read``: the arguments of ``scraped.Sources`` but ``readings``, asked for at the first scrape."""

    def __init__(
        self, metrics: Metrics, count: Callable[[], None], read: Callable[[], dict[str, Any]]
    ) -> None:
        self.readings = Readings()
        self._metrics = metrics
        self._count = count
        self._read = read
        self._sources: Any = None
        self._exporters: dict[str, Any] = {}

    @property
    def pages(self) -> dict[str, Callable[[], bytes]]:
        """What is served, by path, in Prometheus' text format 0.0.4."""
        return {"/metrics": self.exposition, "/metrics/dcgm": self.dcgm}

    def exposition(self) -> bytes:
        """All of ours."""
        self._count()
        return self._metrics.exposition() + self._told_by("gpu_metrics")

    def dcgm(self) -> bytes:
        """What has names of DCGM's and ACK's."""
        return self._told_by("dcgm_exporter")

    def _told_by(self, name: str) -> bytes:
        exporter: Any = self._exporters.get(name)
        first = exporter is None
        if first:
            # Only where somebody scrapes: a process at its memory's budget does without what nobody asks for.
            exporter = self._exporters[name] = importlib.import_module(
                f"gpushare.nodeagent.observability.{name}"
            )
        if self._sources is None:
            scraped = importlib.import_module("gpushare.nodeagent.observability.snapshot")
            self._sources = scraped.Sources(readings=self.readings, **self._read())
        told: list[str] = exporter.lines(self._sources)
        text = "".join(f"{line}\n" for line in told).encode(errors="replace")
        if first:
            # To load a module takes five times what it leaves.
            trim()
        return text
