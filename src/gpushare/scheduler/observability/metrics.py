"""The scheduler's metrics."""

import asyncio
import importlib
import zlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics import Counter, Histogram
from prometheus_client.registry import Collector

from gpushare.httpserver.probes import Exposition

if TYPE_CHECKING:
    from gpushare.ledger import Ledger
    from gpushare.scheduler.observability.gpu_metrics import GpuTable, Snapshot

_BUCKETS_S: Final = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


#: Makes zlib write the gzip format.
_GZIP: Final = 16 + zlib.MAX_WBITS
#: Compression level. The lines are similar, so a higher level saves little.
_EFFORT: Final = 1


class Metrics(Exposition):
    """The scheduler's metrics. ``ledger``: set to export metrics for each GPU as well."""

    def __init__(self, ledger: "Ledger | None" = None) -> None:
        super().__init__()
        self._ledger = ledger
        self._table: GpuTable | None = None
        self._module: Any = None
        self._turn = asyncio.Lock()
        self.request_seconds = Histogram(
            "gpushare_scheduler_extender_request_duration_seconds",
            "Time from a request's body being read to its response being ready, by verb.",
            ["verb"],
            registry=self.registry,
            buckets=_BUCKETS_S,
        )
        self.bind_attempts = Counter(
            "gpushare_scheduler_bind_attempts", "Bind requests by result.", ["result"], registry=self.registry
        )
        self.bad_requests = Counter(
            "gpushare_scheduler_extender_bad_requests",
            "Requests whose body cannot be parsed.",
            ["verb"],
            registry=self.registry,
        )
        self.defragmentations = Counter(
            "gpushare_scheduler_defragmentations",
            "Defragmentation attempts by result.",
            ["result"],
            registry=self.registry,
        )
        self.precomputed = Counter(
            "gpushare_scheduler_precomputed_requests",
            "Requests of new pods that were computed before the first filter call.",
            registry=self.registry,
        )
        self.bind_confirmation_seconds = Histogram(
            "gpushare_scheduler_bind_confirmation_duration_seconds",
            "Time from a reservation to the watch's showing the pod on its node.",
            registry=self.registry,
            buckets=_BUCKETS_S,
        )
        self.expired_reservations = Counter(
            "gpushare_scheduler_expired_reservations",
            "Reservations that expired as their Binding was never observed.",
            registry=self.registry,
        )

    async def answer(self, *, packed: bool) -> tuple[bytes, bool]:
        """As ``Exposition``. The lines of GPUs and the compression run in another thread, one scrape at a time."""
        async with self._turn:
            snapshot = await self._snapshot()
            text = self.render()
            return await asyncio.to_thread(self._complete, text, snapshot, packed), packed

    async def _snapshot(self) -> "Snapshot | None":
        if self._ledger is None:
            return None
        if self._table is None:
            # Imported at the first scrape to keep start-up short, and not in the event loop.
            self._module = await asyncio.to_thread(
                importlib.import_module, "gpushare.scheduler.observability.gpu_metrics"
            )
            self._table = self._module.GpuTable()
        snapshot: Snapshot = self._module.snapshot(self._ledger)
        return snapshot

    def _complete(self, text: bytes, snapshot: "Snapshot | None", packed: bool) -> bytes:  # noqa: FBT001 - handed through a thread
        if snapshot is not None and self._table is not None:
            text += self._table.render(snapshot)
        return zlib.compress(text, _EFFORT, _GZIP) if packed else text

    def watch_by(
        self, name: str, help_text: str, label: str, read: Callable[[], Mapping[str, float]]
    ) -> None:
        """Export a gauge with one value per value of ``label``. ``read`` is called at each scrape."""
        self.registry.register(_ByLabel(name, help_text, label, read))


class _ByLabel(Collector):
    def __init__(
        self, name: str, help_text: str, label: str, read: Callable[[], Mapping[str, float]]
    ) -> None:
        self._description = (name, help_text, label)
        self._read = read

    def collect(self) -> list[GaugeMetricFamily]:
        name, text, label = self._description
        family = GaugeMetricFamily(name, text, labels=[label])
        for value, count in sorted(self._read().items()):
            family.add_metric([value], count)
        return [family]
