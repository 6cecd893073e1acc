"""The cost of a scrape for the scheduler's event loop, with 40,000 GPUs on 5,000 nodes and 50,000 pods on them.

``scrape_loop_ms_40000`` is the processor time that the loop's own thread spends on one scrape, from the request to
passing on the response, compressed as for Prometheus; the rest runs in another thread meanwhile.
``scrape_stall_ms_40000`` is the longest delay of a task of the loop that runs every half millisecond, which other threads can
delay by holding the interpreter. Every metric of the process is in it, with 1,000 pending pods. Between two scrapes pods are
replaced on 1,000 nodes. The first scrape has its own figure.
Usage: ``python -m benchmarks scrape``.
"""

import asyncio
import gc
import statistics
import sys
import time
from typing import Any

from gpushare.api.node.device import Device, NodeDevices
from gpushare.api.node.modes import NodeMode
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.request import ContainerKind, ContainerRequest, Request
from gpushare.kube.clock import SYSTEM_CLOCK
from gpushare.kube.watch.informer import InformerFigures
from gpushare.ledger import Ledger
from gpushare.reasons.categories import Category
from gpushare.scheduler.cache.cache import ClusterCache
from gpushare.scheduler.cache.pod_records import PodRecord
from gpushare.scheduler.framework.binder import RESERVATION_TTL_S, Reservations
from gpushare.scheduler.leader.lease import LeaderWatch, Leading
from gpushare.scheduler.main import export
from gpushare.scheduler.observability.cluster_metrics import ClusterMetrics
from gpushare.scheduler.observability.metrics import Metrics
from gpushare.scheduler.plugins.explain.decision_log import DecisionLog
from gpushare.scheduler.plugins.explain.pending_pod_events import FromDecisions, PendingPodEvents

Figures = dict[str, tuple[float, str]]

_NODES = 5_000
_GPUS = 8
_PODS = 50_000
_CHANGED = 1_000
_WAITING = 1_000
_TICK_S = 0.0005


def measure(*, quick: bool) -> Figures:
    """Medians of the loop's time and of the longest stall, in ms; size of the compressed text in MB."""
    return asyncio.run(_measure(4 if quick else 20))


async def _measure(rounds: int) -> Figures:
    ledger = _cluster()
    metrics = _metrics(ledger)
    # As the process does once it has read everything.
    gc.collect()
    gc.freeze()
    gc.set_threshold(5000)
    spent, stalls, size = [], [], 0
    for turn in range(rounds + 1):
        _churn(ledger, 2 * turn)
        began = time.thread_time()
        text, _ = await metrics.answer(packed=True)
        spent.append(time.thread_time() - began)
        size = len(text)
        # In a separate scrape: the time of hundreds of ticks does not belong to the scrape.
        _churn(ledger, 2 * turn + 1)
        ticking = asyncio.create_task(_longest_stall_s())
        await asyncio.sleep(0.02)
        await metrics.answer(packed=True)
        ticking.cancel()
        stalls.append(await ticking)
    gc.unfreeze()
    gc.set_threshold(700)
    return {
        "scrape_first_loop_ms_40000": (spent[0] * 1000, "ms"),
        "scrape_loop_ms_40000": (statistics.median(spent[1:]) * 1000, "ms"),
        "scrape_loop_most_ms_40000": (max(spent[1:]) * 1000, "ms"),
        "scrape_stall_ms_40000": (statistics.median(stalls[1:]) * 1000, "ms"),
        "scrape_packed_mb_40000": (size / 1e6, "MB"),
    }


class _Silent:
    """No events are written."""

    def record(self, *about: Any, **fields: Any) -> None:
        """Nothing."""


class _NoLeases:
    """There is only one scheduler."""

    async def lease_holder(self, namespace: str, name: str) -> str:
        return ""


class _Watch:
    """A watch that has read everything."""

    figures = InformerFigures(
        synced=True,
        objects=_PODS,
        events=0,
        relists=0,
        reconnects=0,
        unreadable=0,
        last_received_s=0.0,
        last_error="",
    )


def _metrics(ledger: Ledger) -> Metrics:
    """Metrics as exported by the process."""
    metrics, events = Metrics(ledger), _Silent()
    view = ClusterCache(ledger, events, lambda uid: None)
    for number in range(_WAITING):
        view.waiting[f"w{number}"] = PodRecord(f"w{number}", f"default/w{number}", "", False, _request())
    reservations = Reservations(RESERVATION_TTL_S)
    for number in range(_WAITING):
        reservations.add(f"r{number}", f"default/r{number}", SYSTEM_CLOCK.monotonic())
    watches = {kind: _Watch() for kind in ("nodes", "pods")}
    leading = LeaderWatch(Leading(_NoLeases(), None), SYSTEM_CLOCK)
    pending_events = PendingPodEvents(
        FromDecisions(DecisionLog(view, SYSTEM_CLOCK)), events, SYSTEM_CLOCK, leading
    )
    pending_events.by_reason = {category.value: 1 for category in Category}
    pending_events.export(metrics.watch, metrics.watch_by)
    export(metrics, view, reservations)
    ClusterMetrics(metrics, events, reservations, leading, SYSTEM_CLOCK).export(lambda: watches)
    return metrics


async def _longest_stall_s() -> float:
    longest_s = 0.0
    try:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(_TICK_S)
            longest_s = max(longest_s, time.perf_counter() - before - _TICK_S)
    except asyncio.CancelledError:
        return longest_s


def _cluster() -> Ledger:
    ledger = Ledger()
    for number in range(_NODES):
        devices = tuple(Device(one, f"GPU-{number}-{one}", 81559) for one in range(_GPUS))
        ledger.set_node(NodeDevices(f"node-{number:05d}", NodeMode.CORE_MEM, MemoryUnit.GIB, devices))
    for number in range(_PODS):
        ledger.reserve(f"u{number}", f"default/p{number}", _request(), f"node-{number % _NODES:05d}")
    return ledger


def _request() -> Request:
    return Request(5, 5, (ContainerRequest("main", ContainerKind.APP, 0, 5, 5),))


def _churn(ledger: Ledger, turn: int) -> None:
    for number in range(_CHANGED):
        node = (turn * _CHANGED + number) % _NODES
        ledger.release(f"u{node}")
        ledger.reserve(f"u{node}", f"default/p{node}", _request(), f"node-{node:05d}")


if __name__ == "__main__":
    for name, (value, unit) in measure(quick="--quick" in sys.argv).items():
        print(f"{name:<32} {value:10.3f} {unit}")
