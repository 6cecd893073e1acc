"""The latency of a service with neighbours, and the GPU time left to the neighbours.

Each row is compared with the same programs without isolation, measured just before it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.gpu_check.latency import LEFT, LOOP, NEAR_MS, P99_RATIO, SERVICE
from benchmarks.isolation.bed import Bed, Share
from benchmarks.isolation.cases import Case, Figures, rows
from benchmarks.isolation.compute import SETTLING_SECONDS
from benchmarks.isolation.peer import Peer
from benchmarks.isolation.running import finish, send
from benchmarks.isolation.table import Row


@dataclass(frozen=True, slots=True)
class Times:
    """Times of the slowest service, in ms; and percent of the GPU of the last program."""

    p50: float
    p99: float
    neighbour: float


def _times(bed: Bed, loads: Sequence[tuple[Share | None, str]], seconds: float) -> Times:
    processes = []
    for number, (share, work) in enumerate(loads):
        container = None if share is None else bed.container(f"c{number}", share)
        processes.append(bed.load(container, [work]))
    for process in reversed(processes):
        send(process, "go")
    bed.wait(SETTLING_SECONDS)
    shares = bed.shares(processes, seconds)
    services = [
        finish(process) for process, (_, work) in zip(processes, loads, strict=True) if work == SERVICE
    ]
    return Times(max(one["p50"] for one in services), max(one["p99"] for one in services), shares[-1])


def _case(percents: Sequence[int], works: Sequence[str], policy: str, seconds: float) -> Case:
    name = " + ".join(
        f"{percent}% {work.partition(':')[0]}" for percent, work in zip(percents, works, strict=True)
    )
    left = percents[-1] if works[-1] == LOOP and policy == "hard" else 0

    def measure(peer: Peer | None) -> Figures:
        with Bed(arbiter=False) as bed:
            bare = _times(bed, [(None, work) for work in works], seconds)
        with Bed(peer) as bed:
            shares = [Share(percent, policy) for percent in percents]
            got = _times(bed, list(zip(shares, works, strict=True)), seconds)
        return [got.p50, got.p99, got.neighbour, bare.p50, bare.p99]

    def off(got: Figures) -> float:
        return max(0.0, got[1] - P99_RATIO * got[4])

    def good(got: Figures) -> bool:
        p50, _, neighbour, bare_p50, _ = got
        return p50 <= bare_p50 + NEAR_MS and not off(got) and neighbour >= LEFT * left

    return Case(
        f"{name}{'' if policy == 'hard' else ', idle policy'}: p50, p99, last %, bare p50, p99",
        [],
        "ms, %",
        "as bare",
        measure,
        off,
        good,
        NEAR_MS,
        policy != "hard",
    )


def measure(peer: Peer | None, *, quick: bool) -> Iterator[Row]:
    """A service with a loop; three services together."""
    seconds = 1.0 if quick else 8.0
    pairs = [(50, 50)] if quick else [(50, 50), (30, 70), (20, 80)]
    cases = [_case(pair, (SERVICE, LOOP), "hard", seconds) for pair in pairs]
    if not quick:
        cases.append(_case((50, 50), (SERVICE, LOOP), "idle", seconds))
        cases.append(_case((30, 30, 30), (SERVICE,) * 3, "hard", seconds))
    # One at a time: measured is how soon threads wake up, which needs free processors.
    yield from rows(cases, peer)
