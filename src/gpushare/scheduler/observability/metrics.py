"""What the scheduler tells Prometheus."""

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


#: Makes zlib write what gzip reads.
_GZIP: Final = 16 + zlib.MAX_WBITS
#: The text repeats itself line by line: more effort makes it hardly smaller.
_EFFORT: Final = 1


class Metrics(Exposition):
    """The scheduler's metrics. ``ledger``: who holds what on which GPU, where GPUs are to be told one by one."""

    def __init__(self, ledger: "Ledger | None" = None) -> None:
        super().__init__()
        self._ledger = ledger
        self._table: GpuTable | None = None
        self._module: Any = None
        self._turn = asyncio.Lock()
        self.verb_seconds = Histogram(
            "gpushare_scheduler_verb_duration_seconds",
            "Time from a verb's body being read to its answer being ready.",
            ["verb"],
            registry=self.registry,
            buckets=_BUCKETS_S,
        )
        self.binds = Counter(
            "gpushare_scheduler_binds", "Bind calls by result.", ["result"], registry=self.registry
        )
        self.errors = Counter(
            "gpushare_scheduler_refused_bodies",
            "Bodies that could not be read.",
            ["verb"],
            registry=self.registry,
        )
        self.moved = Counter(
            "gpushare_scheduler_defragmentations",
            "Times that pods were to be moved for one that waited, by what came of it.",
            ["result"],
            registry=self.registry,
        )
        self.foreseen = Counter(
            "gpushare_scheduler_foreseen_requests",
            "Requests of new pods that were worked out before anybody asked about them.",
            registry=self.registry,
        )
        self.confirmation_seconds = Histogram(
            "gpushare_scheduler_confirmation_duration_seconds",
            "Time from a share's being reserved to the watch's showing the pod with it.",
            registry=self.registry,
            buckets=_BUCKETS_S,
        )
        self.stale = Counter(
            "gpushare_scheduler_stale_reservations",
            "Shares that were reserved for a Binding that never came.",
            registry=self.registry,
        )

    async def answer(self, *, packed: bool) -> tuple[bytes, bool]:
        """As ``Exposition``; every GPU's lines are made, and all is packed, in another thread, one scrape after the other."""
        async with self._turn:
            taken = await self._taken()
            text = self.render()
            return await asyncio.to_thread(self._whole, text, taken, packed), packed

    async def _taken(self) -> "Snapshot | None":
        if self._ledger is None:
            return None
        if self._table is None:
            # By the first scrape, as a start is timed; and not in the event loop.
            self._module = await asyncio.to_thread(
                importlib.import_module, "gpushare.scheduler.observability.gpu_metrics"
            )
            self._table = self._module.GpuTable()
        taken: Snapshot = self._module.snapshot(self._ledger)
        return taken

    def _whole(self, text: bytes, taken: "Snapshot | None", packed: bool) -> bytes:  # noqa: FBT001 - handed through a thread
        if taken is not None and self._table is not None:
            text += self._table.render(taken)
        return zlib.compress(text, _EFFORT, _GZIP) if packed else text

    def watch_by(
        self, name: str, help_text: str, label: str, read: Callable[[], Mapping[str, float]]
    ) -> None:
        """Export ``read()`` as a gauge with one value for each value of ``label``, called at each scrape."""
        self.registry.register(_ByLabel(name, help_text, label, read))


class _ByLabel(Collector):
    def __init__(
        self, name: str, help_text: str, label: str, read: Callable[[], Mapping[str, float]]
    ) -> None:
        self._asked = (name, help_text, label)
        self._read = read

    def collect(self) -> list[GaugeMetricFamily]:
        name, text, label = self._asked
        family = GaugeMetricFamily(name, text, labels=[label])
        for value, count in sorted(self._read().items()):
            family.add_metric([value], count)
        return [family]
