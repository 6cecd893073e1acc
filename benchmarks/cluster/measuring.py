"""One run of one variant: a backlog of pods, a burst of pods, and pods at a steady rate."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.cluster.api import Bound
from benchmarks.cluster.bed import Bed
from benchmarks.cluster.metrics import Sums, sums_of
from benchmarks.cluster.objects import pod
from benchmarks.cluster.processes import busy_s, cpu_of
from benchmarks.cluster.variants import Scheduler
from benchmarks.processes import rss_mb

#: GPU memory units that pods request, in turn: an eightieth to a tenth of a GPU of 80 GiB.
_UNITS = (1, 2, 4, 8)


#: In addition to the processes: all work of the machine.
EVERYTHING = "everything"
#: The part of the backlog in which caches warm up; it is not counted.
_WARM_UP = 0.05


@dataclass(frozen=True)
class Load:
    """The sizes of backlog and burst, and of the steady part at ``steady_per_s`` pods per second."""

    backlog: int
    burst: int
    steady: int
    steady_per_s: float


@dataclass
class Run:
    """Results of a run. Times in seconds, processor times per pod in milliseconds, memory in MB."""

    pods_per_s: float
    cpu_ms: dict[str, float]
    rss: dict[str, float]
    scheduler: dict[str, float]
    """Mean milliseconds per pod of kube-scheduler's own stages, from its metrics."""
    verbs: dict[str, float]
    """Mean milliseconds of our extender's verbs, from its metrics."""
    burst_s: list[float] = field(default_factory=list)
    steady_s: list[float] = field(default_factory=list)

    @property
    def cpu_sum_ms(self) -> float:
        """Processor time of all processes of the cluster per pod."""
        return sum(self.cpu_ms.values()) - self.cpu_ms[EVERYTHING]

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {spent:.1f}" for name, spent in self.cpu_ms.items())
        return f"{self.pods_per_s:.1f} pods/s; {self.cpu_sum_ms:.1f} ms of processors per pod ({parts})"


def percentile(times: Sequence[float], share: float) -> float:
    """The quantile ``share`` of ``times``."""
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


class Meter:
    """Processor time and metrics between two moments."""

    def __init__(self, bed: Bed, scheduler: Scheduler) -> None:
        self._pids = {**bed.pids, **scheduler.pids}
        self._scheduler = scheduler

    async def start(self) -> None:
        """Begin the interval."""
        self._sums = await self._read()
        self._busy = busy_s()
        self._cpu = cpu_of(self._pids)

    async def stop(self, pods: int) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
        """End the interval: processor time by process, kube-scheduler's stages, our verbs; milliseconds per pod."""
        cpu, busy = cpu_of(self._pids), busy_s()
        spent = {name: (cpu[name] - self._cpu[name]) * 1e3 / pods for name in cpu}
        spent[EVERYTHING] = (busy - self._busy) * 1e3 / pods
        after = await self._read()
        return spent, after[0].stages_since(self._sums[0]), after[1].verbs_since(self._sums[1])

    async def _read(self) -> tuple[Sums, Sums]:
        return (
            sums_of(await self._scheduler.text("/metrics")),
            sums_of(await self._scheduler.extender_text("/metrics")),
        )


async def backlog(bed: Bed, scheduler: Scheduler, bound: Bound, count: int) -> Run:
    """Watch a newly started scheduler place ``count`` pending pods."""
    meter = Meter(bed, scheduler)
    await bound.reaches(max(1, int(count * _WARM_UP)), scheduler.programs)
    await meter.start()
    first, started_s = len(bound.at_s), max(bound.at_s.values())
    await bound.reaches(count, scheduler.programs)
    placed, took_s = count - first, max(bound.at_s.values()) - started_s
    if not placed:
        raise RuntimeError(f"all {count} pods had a node before the measurement began: more pods are needed")
    spent, stages, verbs = await meter.stop(placed)
    rss = {name: rss_mb(pid) for name, pid in {**bed.pids, **scheduler.pids}.items()}
    return Run(placed / took_s, spent, rss, stages, verbs)


def pods(prefix: str, count: int) -> list[dict[str, object]]:
    """Pods with different shares, in turn."""
    return [pod(f"{prefix}-{number}", _UNITS[number % len(_UNITS)]) for number in range(count)]


async def arrivals(
    bed: Bed, scheduler: Scheduler, bound: Bound, prefix: str, count: int, per_s: float
) -> list[float]:
    """Create ``count`` pods, ``per_s`` a second (0: at once); seconds from each creation to its node."""
    before = len(bound.at_s)
    created_s: dict[str, float] = {}
    writers = asyncio.Semaphore(12)

    async def create(thing: dict[str, object], name: str) -> None:
        async with writers:
            created_s[name] = time.perf_counter()
            await bed.api.create_pod(thing)

    started_s = time.perf_counter()
    async with asyncio.TaskGroup() as creating:
        for number, thing in enumerate(pods(prefix, count)):
            if per_s:
                await asyncio.sleep(started_s + number / per_s - time.perf_counter())
            creating.create_task(create(thing, f"{prefix}-{number}"))
    await bound.reaches(before + count, scheduler.programs)
    return [bound.at_s[name] - at_s for name, at_s in created_s.items()]


async def run(bed: Bed, scheduler: Scheduler, bound: Bound, load: Load) -> Run:
    """A whole run; the backlog's pods exist and are pending."""
    found = await backlog(bed, scheduler, bound, load.backlog)
    found.burst_s = await arrivals(bed, scheduler, bound, "burst", load.burst, 0.0)
    found.steady_s = await arrivals(bed, scheduler, bound, "steady", load.steady, load.steady_per_s)
    return found
