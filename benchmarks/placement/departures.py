"""GPU allocation and waiting times per placement policy with arrivals and departures, on the openb traces.

Usage: ``make bench-departures``, or ``python -m benchmarks.placement.departures [--quick] [--load 90,95,100] [--hours N] [--seeds N]
[--policy P] [TRACE]``.

Pods are drawn from the list with their lifetimes, and arrive at random (exponential intervals) at a rate at which they request
``load`` percent of the cluster's GPUs on average. The cluster starts with the pods of the steady state: pods that run long are more
frequent, at a random point of their life. A pod that fits nowhere waits, and whenever a pod ends, the waiting ones are tried
on its node, the oldest first, which is equivalent to kube-scheduler's queue. Prints a table, and writes curves to
``build/figures/departures.json``. Nothing is evicted: defragmentation does not take part.
"""

import argparse
import heapq
import itertools
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.placement import generated
from benchmarks.placement.__main__ import DATA, FIRST_SEED, OURS, ROOT
from benchmarks.placement.fgd import Fgd
from benchmarks.placement.openb import MILLI, TraceError, TraceNode, TracePod
from benchmarks.placement.replay import Cluster, Tried
from benchmarks.placement.tasks import read
from benchmarks.processes import machine
from gpushare.simulate.peers.names import PEERS

#: FGD chooses for pods with GPUs, as an extender can; or for all, as in its paper.
FGD: Final = "fgd"
FGD_ALL: Final = "fgd-all-pods"
POLICIES: Final = (*OURS, FGD, FGD_ALL, *PEERS)
_OUT: Final = ROOT / "build" / "figures" / "departures.json"
_HOUR_S: Final = 3600.0
#: Points of the curve of one run.
_POINTS: Final = 200
_QUICK_NODES: Final = 40


class Run(NamedTuple):
    """One run: percentages of the cluster's GPUs, seconds. ``refused``: percent of the pods with GPUs that fitted nowhere on arrival."""

    policy: str
    load_percent: float
    seed: int
    allocated_percent: float
    refused_percent: float
    wait_p50_s: float
    wait_p99_s: float
    waiting: int
    """Pods that still wait at the end; their waits so far count."""
    curve: list[tuple[float, float]]
    """Hours, and percent of the GPUs allocated at that time."""


class _Fgd(Cluster):
    """A cluster on which FGD chooses; processors, memory and models are handled as in others."""

    def __init__(
        self,
        nodes: Sequence[TraceNode],
        pods: Sequence[TracePod],
        chance: random.Random,
        *,
        all_pods: bool,
    ) -> None:
        super().__init__(nodes, OURS[0], chance)
        self._all_pods = all_pods
        self._fgd = Fgd(nodes, pods, chance)
        self._held: dict[str, tuple[int, ...]] = {}

    def place(self, uid: str, pod: TracePod, *, is_new: bool = True, only: int | None = None) -> Tried:
        chosen = self._fgd.choose(pod, self._roomy(pod, only), self._free_cpu)
        if chosen is None:
            return Tried(0.0, None)
        node, gpus = chosen
        self._held[uid] = gpus
        self._fgd.take(node, gpus, pod.gpu_milli)
        self.allocated_milli += pod.total_milli
        self._take(node, pod)
        return Tried(0.0, node, gpus)

    def place_without_gpu(self, pod: TracePod, *, only: int | None = None) -> Tried:
        if not self._all_pods:
            return super().place_without_gpu(pod, only=only)
        chosen = self._fgd.choose(pod, self._roomy(pod, only), self._free_cpu)
        if chosen is None:
            return Tried(0.0, None)
        self._take(chosen[0], pod)
        return Tried(0.0, chosen[0])

    def release(self, uid: str, node: int, pod: TracePod) -> None:
        if pod.gpus:
            self._fgd.take(node, self._held.pop(uid), -pod.gpu_milli)
            self.allocated_milli -= pod.total_milli
        self._take(node, pod, -1)

    def _take(self, node: int, pod: TracePod, times: int = 1) -> None:
        super()._take(node, pod, times)
        self._fgd.changed(node)


class _Arrival(NamedTuple):
    at_s: float
    number: int
    pod: TracePod
    lifetime_s: float


def run(
    nodes: Sequence[TraceNode],
    pods: Sequence[TracePod],
    policy: str,
    load: float,
    hours: float,
    seed: int,
) -> Run:
    """One run of ``hours``; ``load`` is a part of the cluster's GPUs. Arrivals are the same for every policy."""
    living = [pod for pod in pods if pod.lifetime_s > 0]
    capacity_milli = sum(node.gpus for node in nodes) * MILLI
    chance = random.Random(f"{policy} {seed}")
    flow = _Flow(
        _Fgd(nodes, living, chance, all_pods=policy == FGD_ALL)
        if policy in (FGD, FGD_ALL)
        else Cluster(nodes, policy, chance)
    )
    for arrival in _arrivals(living, load * capacity_milli, hours * _HOUR_S, random.Random(seed)):
        flow.until(arrival.at_s)
        flow.arrive(arrival)
    end_s = hours * _HOUR_S
    flow.until(end_s)
    waits = sorted([*flow.waited_s, *(end_s - one.at_s for one in flow.waiting if one.at_s > 0)])
    curve = [(at_s / _HOUR_S, 100 * milli / capacity_milli) for at_s, milli in flow.curve(end_s)]
    return Run(
        policy,
        100 * load,
        seed,
        100 * flow.milli_seconds / end_s / capacity_milli,
        100 * flow.refused / max(flow.arrived, 1),
        waits[len(waits) // 2],
        waits[len(waits) * 99 // 100],
        len(flow.waiting),
        curve,
    )


def _arrivals(
    pods: Sequence[TracePod], requested_milli: float, seconds: float, chance: random.Random
) -> list[_Arrival]:
    """First, at time 0, the pods of the steady state; then the arrivals."""
    per_pod = sum(pod.total_milli * pod.lifetime_s for pod in pods) / len(pods)
    rate = requested_milli / per_pod
    number, found, initial_milli = itertools.count(1), list[_Arrival](), 0
    weights = list(itertools.accumulate(pod.lifetime_s for pod in pods))
    while initial_milli < requested_milli:
        pod = chance.choices(pods, cum_weights=weights)[0]
        found.append(_Arrival(0.0, next(number), pod, pod.lifetime_s * chance.random()))
        initial_milli += pod.total_milli
    at_s = chance.expovariate(rate)
    while at_s < seconds:
        pod = chance.choice(pods)
        found.append(_Arrival(at_s, next(number), pod, pod.lifetime_s))
        at_s += chance.expovariate(rate)
    return found


class _Flow:
    """Pods that arrive, wait and end on a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._ends: list[tuple[float, int, int, TracePod]] = []
        self.waiting: list[_Arrival] = []
        self.waited_s: list[float] = []
        self.arrived = self.refused = 0
        self.milli_seconds = 0.0
        self._now_s = 0.0
        self._levels: list[tuple[float, int]] = []

    def arrive(self, arrival: _Arrival) -> None:
        """A pod arrives; those of the start are not counted."""
        counts = arrival.at_s > 0 and arrival.pod.gpus > 0
        self.arrived += counts
        if not self._place(arrival, arrival.at_s):
            self.refused += counts
            self.waiting.append(arrival)

    def until(self, now_s: float) -> None:
        """End all pods due until then, and place waiting ones in their room."""
        while self._ends and self._ends[0][0] <= now_s:
            at_s, number, node, pod = heapq.heappop(self._ends)
            self._pass(at_s)
            self._cluster.release(str(number), node, pod)
            self.waiting = [one for one in self.waiting if not self._place(one, at_s, node)]
        self._pass(now_s)

    def curve(self, end_s: float) -> list[tuple[float, int]]:
        """The allocation at some points in time."""
        every = max(len(self._levels) // _POINTS, 1)
        return [*self._levels[::every], (end_s, self._cluster.allocated_milli)]

    def _pass(self, now_s: float) -> None:
        self.milli_seconds += (now_s - self._now_s) * self._cluster.allocated_milli
        self._now_s = now_s
        self._levels.append((now_s, self._cluster.allocated_milli))

    def _place(self, arrival: _Arrival, at_s: float, only: int | None = None) -> bool:
        pod = arrival.pod
        if only is not None and not self._cluster.has_room(only, pod):
            return False
        if pod.gpus:
            tried = self._cluster.place(str(arrival.number), pod, is_new=only is None, only=only)
        else:
            tried = self._cluster.place_without_gpu(pod, only=only)
        if tried.node is None:
            return False
        heapq.heappush(self._ends, (at_s + arrival.lifetime_s, arrival.number, tried.node, pod))
        if arrival.at_s > 0 and pod.gpus:
            self.waited_s.append(at_s - arrival.at_s)
        return True


def table(runs: Sequence[Run]) -> list[str]:
    """A line for each policy and load: means over the seeds."""
    lines = [
        f"{'load':>5}  {'policy':<21} {'allocated':>9} {'refused':>8} {'wait p50':>9} {'wait p99':>9} {'waiting':>8}"
    ]
    for load, policy in dict.fromkeys((one.load_percent, one.policy) for one in runs):
        found = [one for one in runs if (one.load_percent, one.policy) == (load, policy)]
        lines.append(
            f"{load:4.0f}%  {policy:<21} {_mean(one.allocated_percent for one in found):8.2f}% "
            f"{_mean(one.refused_percent for one in found):7.2f}% {_mean(one.wait_p50_s for one in found):7.0f} s "
            f"{_mean(one.wait_p99_s for one in found):7.0f} s {_mean(one.waiting for one in found):8.0f}"
        )
    return lines


def _mean(values: Iterable[float]) -> float:
    return statistics.mean(values)


def main() -> int:
    """Run, print, write; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.placement.departures",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("trace", nargs="?", default="default", metavar="TRACE")
    parser.add_argument(
        "--load", default="90,95,100", help="percent of the cluster's GPUs (default %(default)s)"
    )
    parser.add_argument("--hours", type=float, default=6.0, help="default %(default)s")
    parser.add_argument("--seeds", type=int, default=1, help="default %(default)s")
    parser.add_argument("--policy", action="append", choices=POLICIES, help="default: all")
    parser.add_argument("--quick", action="store_true", help="a few nodes, to see that it runs")
    options = parser.parse_args()
    if DATA.is_dir():
        return _run_all(options, DATA)
    if not options.quick:
        print(f"skipped: {DATA} is not there; the lists of openb are needed")
        return 0
    with tempfile.TemporaryDirectory() as made:
        generated.write(Path(made), [options.trace])
        return _run_all(options, Path(made))


def _run_all(options: argparse.Namespace, folder: Path) -> int:
    try:
        read(folder, options.trace)
    except (TraceError, KeyError) as error:
        print(f"bench-departures: {folder}: {error}", file=sys.stderr)
        return 2
    loads = [float(text) / 100 for text in options.load.split(",")]
    seeds = range(FIRST_SEED, FIRST_SEED + (1 if options.quick else options.seeds))
    print(f"Machine: {machine()}", flush=True)
    started_s, runs = time.monotonic(), []
    with ProcessPoolExecutor(2) as pool:
        futures = [
            pool.submit(_run, folder, options.trace, policy, load, options.hours, seed, options.quick)
            for load in loads
            for policy in options.policy or POLICIES
            for seed in seeds
        ]
        for future in futures:
            runs.append(one := future.result())
            print(
                f"  {len(runs)}/{len(futures)} after {time.monotonic() - started_s:4.0f} s: {one.policy} at {one.load_percent:.0f}%, "
                f"seed {one.seed}: {one.allocated_percent:.2f}% allocated, {one.refused_percent:.2f}% refused",
                flush=True,
            )
    print("\n".join(["", *table(runs)]))
    if not options.quick:
        _OUT.parent.mkdir(parents=True, exist_ok=True)
        _OUT.write_text(json.dumps([one._asdict() for one in runs]) + "\n")
        print(f"Written: {_OUT.relative_to(ROOT)}")
    return 0


def _run(folder: Path, trace: str, policy: str, load: float, hours: float, seed: int, quick: bool) -> Run:
    nodes, pods = read(folder, trace)
    if quick:
        nodes = nodes[:: -(-len(nodes) // _QUICK_NODES)]
    return run(nodes, pods, policy, load, 0.5 if quick else hours, seed)


if __name__ == "__main__":
    sys.exit(main())
