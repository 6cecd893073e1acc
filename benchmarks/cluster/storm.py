"""Thousands of pods fit nowhere while others end one by one: how many are retried, and at what cost.

Every GPU is a little over half full, so that a node has room in total, but no single GPU has enough: kube-scheduler's own
filters accept the pods, and our extender rejects them. Each pod that ends makes room for two pending ones.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.api_server import GPUS_PER_NODE
from benchmarks.budgets import Figures
from benchmarks.cluster.api import Bound
from benchmarks.cluster.bed import Bed
from benchmarks.cluster.measuring import EVERYTHING, percentile
from benchmarks.cluster.metrics import attempts
from benchmarks.cluster.objects import pod
from benchmarks.cluster.processes import WORK_S, Program, busy_s, cpu_of, fresh_folder, until
from benchmarks.cluster.variants import OURS, Scheduler, scheduler

#: Of 80 units: two of the first do not fit on one GPU, nor one of the second with one of the first.
_FILLING_UNITS: Final = 41
_WAITING_UNITS: Final = 40
_PER_ROOM: Final = 2


@dataclass(frozen=True)
class Storm:
    """The numbers of pending and of ending pods, the quiet time before (seconds), and the time between ends."""

    waiting: int = 2000
    ends: int = 20
    quiet_s: float = 20.0
    between_s: float = 2.0


class _Span:
    """Attempts and processor time of an interval."""

    def __init__(self, bed: Bed, scheduler: Scheduler) -> None:
        self._pids = {**bed.pids, **scheduler.pids}
        self._scheduler = scheduler

    async def _read(self) -> tuple[float, dict[str, float], float]:
        tried = attempts(await self._scheduler.text("/metrics"))
        return tried, {**cpu_of(self._pids), EVERYTHING: busy_s()}, time.perf_counter()

    async def start(self) -> None:
        """Begin the interval."""
        self._begun = await self._read()

    async def stop(self, name: str) -> Figures:
        """End the interval: attempts per second, and the share of one processor that each process took."""
        tried, spent, now = await self._read()
        took_s = now - self._begun[2]
        found: Figures = {f"storm_attempts_per_s_{name}": ((tried - self._begun[0]) / took_s, "1/s")}
        for process, seconds in spent.items():
            share = (seconds - self._begun[1][process]) / took_s
            found[f"storm_cpu_{process}_{name}"] = (share, "cores")
        return found


async def measure(bed: Bed, binaries: Path, null: Path, plan: Storm) -> Figures:
    """Every figure of the storm, on all nodes of ``bed``."""
    filling = bed.nodes * GPUS_PER_NODE
    state = fresh_folder(bed.folder, "storm")
    found: Figures = {}
    async with bed.api.bound() as bound, scheduler(OURS, bed, binaries, state, 0, null) as started:
        await bed.api.create_pods(pod(f"filling-{number}", _FILLING_UNITS) for number in range(filling))
        await bound.reaches(filling, started.programs)
        span = _Span(bed, started)
        await span.start()
        before = attempts(await started.text("/metrics"))
        await bed.api.create_pods(pod(f"waiting-{number}", _WAITING_UNITS) for number in range(plan.waiting))

        async def all_tried() -> bool:
            return attempts(await started.text("/metrics")) >= before + plan.waiting

        await until(
            all_tried, "every pending pod was tried once", started.programs, deadline_s=WORK_S, every_s=0.5
        )
        found |= await span.stop("first")
        await span.start()
        await asyncio.sleep(plan.quiet_s)
        found |= await span.stop("quiet")
        await span.start()
        first_s, second_s = await _ends(bed, started.programs, bound, plan)
        found |= await span.stop("ends")
        for name, times in (("first", first_s), ("second", second_s)):
            for share, label in ((0.5, "p50"), (0.99, "p99")):
                found[f"storm_{name}_taker_{label}_ms"] = (percentile(times, share) * 1e3, "ms")
    await bed.api.delete_pods(bed.programs)
    return found


async def _ends(
    bed: Bed, programs: Sequence[Program], bound: Bound, plan: Storm
) -> tuple[list[float], list[float]]:
    """End one pod after the other; seconds until the first and the second pending pod took its place."""
    first_s, second_s = [], []
    for number in range(plan.ends):
        before, started_s = len(bound.at_s), time.perf_counter()
        await bed.api.delete_pod(f"filling-{number}")
        await bound.reaches(before + _PER_ROOM, programs)
        times = sorted(bound.at_s.values())
        first_s.append(times[before] - started_s)
        second_s.append(times[before + 1] - started_s)
        await asyncio.sleep(max(0.0, started_s + plan.between_s - time.perf_counter()))
    return first_s, second_s
