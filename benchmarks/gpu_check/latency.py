"""The latency of a service with neighbours: not slower than without isolation, and the neighbours keep their shares."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.gpu_check.compute import Load, at_work, progress
from benchmarks.gpu_check.lab import TROUBLES, Lab
from benchmarks.gpu_check.report import Row, measured, not_run, promise

TITLE = "Latency"

#: 1.6 ms of GPU time and a pause of some 10 ms, a sixth of the GPU; a loop of kernels of that length is its neighbour.
SERVICE, LOOP = "service:200000:8", "kernels:1600000"
#: Allowed ratio of the 99th percentile to that without isolation; and the part of the remaining time that a loop must get.
P99_RATIO, LEFT = 1.2, 0.95
#: Medians within this distance count as equal, in ms.
NEAR_MS = 0.2
#: Starting, settling and ending, in seconds.
_AROUND_S = 5.0


@dataclass(frozen=True, slots=True)
class Times:
    """Times of the slowest service, in ms; and percent of the GPU's time of the last program."""

    p50: float
    p99: float
    last: float

    def __str__(self) -> str:
        return f"p50 {self.p50:.2f} ms, p99 {self.p99:.2f} ms, the last one {self.last:.1f} %"


def times(lab: Lab, loads: Sequence[Load], seconds: float, *, under_peer: bool = False) -> Times:
    """Run all loads together for that time."""
    with at_work(lab, loads, under_peer=under_peer) as programs:
        before = [progress(program) for program in programs]
        lab.clock.sleep(seconds)
        after = [progress(program) for program in programs]
    services = [found for found, load in zip(after, loads, strict=True) if load.work == SERVICE]
    done = (after[-1][1] - before[-1][1]) * (loads[-1].unit_ns or 0)
    last = 100 * done / (after[-1][0] - before[-1][0])
    return Times(max(one[2] for one in services) / 1e6, max(one[3] for one in services) / 1e6, last)


def of_peer(lab: Lab, row: str, loads: Sequence[Load], seconds: float) -> Row:
    """The same shares under the other library."""
    assert lab.peer is not None
    name = f"{lab.peer.name}, {row}"
    if lab.clock.left_s() < _AROUND_S + seconds:
        return not_run(name, "no time left for it")
    try:
        return measured(name, str(times(lab, loads, seconds, under_peer=True)))
    except TROUBLES as error:
        return measured(name, error)


def group(
    lab: Lab, works: Sequence[str], shares: Sequence[Sequence[int]], seconds: float, *, judged: bool = True
) -> Iterator[Row]:
    """The same programs without isolation, and with each of the ``shares``."""
    name = " beside ".join(work.partition(":")[0] for work in works)
    bare = times(lab, [Load(work) for work in works], seconds)
    yield measured(f"no limit: {name}", str(bare))
    for percents in shares:
        row = f"{' + '.join(map(str, percents))} %: {name}"
        wanted = f"p50 as {bare.p50:.2f}, p99 at most {P99_RATIO} times {bare.p99:.2f} ms"
        left = LEFT * percents[-1] if works[-1] == LOOP else 0.0
        if left:
            wanted += f", the loop at least {left:.1f} %"
        if lab.clock.left_s() < _AROUND_S + seconds:
            yield not_run(row, "no time left for it")
            continue
        loads = [replace(Load(work), percent=percent) for work, percent in zip(works, percents, strict=True)]
        try:
            got = times(lab, loads, seconds)
        except TROUBLES as error:
            yield promise(row, wanted, error, False)
            continue
        holds = got.p50 <= bare.p50 + NEAR_MS and got.p99 <= P99_RATIO * bare.p99 and got.last >= left
        yield promise(row, wanted, str(got), holds) if judged else measured(row, str(got))
        if lab.peer:
            yield of_peer(lab, row, loads, seconds)


def rows(lab: Lab, *, quick: bool) -> Iterator[Row]:
    """A service with one loop, and with three."""
    seconds = 3.0 if quick else 8.0
    pairs = [(30, 70)] if quick else [(50, 50), (30, 70), (20, 80)]
    yield from group(lab, (SERVICE, LOOP), pairs, seconds, judged=not quick)
    if not quick:
        yield from group(lab, (SERVICE,) * 3, [(30, 30, 30)], seconds)
