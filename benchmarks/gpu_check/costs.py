"""The overhead of our libraries: per call, by the same program without a limit, with one of memory, and with one of compute; and for the
start of a program without a GPU, if they are preloaded."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from benchmarks.gpu_check.lab import SPIN, TROUBLES, Lab, Share, Unanswered
from benchmarks.gpu_check.report import Row, measured, promise

TITLE = "Costs of calls"

#: Allowed overhead in nanoseconds: by a memory limit, and by a compute limit in addition. Other calls have no bound.
MOST_ADDED_NS: Mapping[str, tuple[float, float]] = {
    "cuCtxGetCurrent": (100, 100),
    "cuStreamSynchronize": (100, 300),
    "cuLaunchKernel": (100, 300),
    "cuMemAlloc_v2+cuMemFree_v2,64KiB": (2000, 2000),
    "cuMemAlloc_v2,2MiB": (2000, 2000),
}
#: Rounds of all variants, one after the other.
ROUNDS = 5
#: As in the node agent's list.
PRELOADED = ("libcuda.so.1", "libnvidia-ml.so.1", "libcuda.so", "libnvidia-ml.so")
#: In addition to the time of the driver's own libraries, which ours need.
MOST_PRELOADED_MS = 0.5

#: Nanoseconds by name of the call.
Costs = Mapping[str, float]


def once(lab: Lab, share: Share | None, series: int, *, under_peer: bool = False) -> Costs:
    """One run of the program."""
    ours = share if not under_peer else None
    more = lab.under_peer(share) if under_peer and share else {}
    with lab.arbiter() if ours and ours.percent else nullcontext():
        container = lab.container(ours) if ours else None
        outcome = lab.run(container, lab.programs / "call_costs", SPIN, str(series), timeout_s=60, **more)
    if not outcome.good:
        raise Unanswered(outcome.trouble())
    return {name: float(value) for name, value in (line.split() for line in outcome.out.splitlines())}


def added(bare: Sequence[Costs], limited: Sequence[Costs], name: str) -> float:
    """The median over rounds: a busy moment, or the location of a program's pages, must not affect only one of the variants."""
    return statistics.median(ours[name] - base[name] for base, ours in zip(bare, limited, strict=True))


def calls(lab: Lab, *, quick: bool) -> Iterator[Row]:
    """Each call; only measured in a quick run."""
    room_mib = lab.room_mib(512)
    ways, series = (None, Share(room_mib), Share(room_mib, 100)), 5 if quick else 60
    seen: tuple[list[Costs], ...] = ([], [], [])
    peers: list[Costs] = []
    peer_trouble = ""
    try:
        for _ in range(1 if quick else ROUNDS):
            for share, costs in zip(ways, seen, strict=True):
                costs.append(once(lab, share, series))
            if lab.peer and not peer_trouble:
                try:
                    peers.append(once(lab, ways[-1], series, under_peer=True))
                except TROUBLES as error:
                    peer_trouble = str(error)
    except TROUBLES as error:
        yield promise("the calls", "are timed", error, False)
        return
    if lab.peer and peer_trouble:
        yield measured(lab.peer.name, peer_trouble)
    bare, memory, compute = seen
    for name in bare[0]:
        base = statistics.median(costs[name] for costs in bare)
        more = added(bare, memory, name), added(bare, compute, name)
        got = f"{base:.0f} ns; {more[0]:+.0f} ns by a memory limit, {more[1]:+.0f} ns with compute"
        if lab.peer and not peer_trouble:
            got += f"; {added(bare, peers, name):+.0f} ns by {lab.peer.name}"
        if not quick and (bounds := MOST_ADDED_NS.get(name)):
            promised = f"at most +{bounds[0]:g} ns, +{bounds[1]:g} ns"
            yield promise(name, promised, got, more[0] <= bounds[0] and more[1] <= bounds[1])
        else:
            yield measured(name, got)


def preloaded(lab: Lab, libraries: Sequence[Path], times: int) -> tuple[float, float]:
    """Milliseconds that preloading adds to the start of a program without a GPU, and its time without."""
    words = " ".join(map(str, libraries))
    folder = lab.container(Share(2))
    outcome = lab.run(folder, lab.programs / "start_plain", str(times), timeout_s=30, LD_PRELOAD=words)
    if not outcome.good:
        raise Unanswered(outcome.trouble())
    more, bare = map(float, outcome.out.split())
    return more, bare


def start(lab: Lab, *, quick: bool) -> Iterator[Row]:
    """Ours compared with the driver's libraries alone, which are most of it."""
    name, times = "the start of a program without a GPU, preloaded", 20 if quick else 200
    promised = f"at most {MOST_PRELOADED_MS:g} ms more than the driver's own libraries"
    try:
        whole, bare = preloaded(lab, [lab.libraries / name for name in PRELOADED], times)
        own, _ = preloaded(lab, [lab.driver.cuda, lab.driver.management], times)
    except TROUBLES as error:
        yield promise(name, promised, error, False)
        return
    got = f"{whole:+.2f} ms, {own:+.2f} ms by the driver's own libraries alone; {bare:.2f} ms without"
    yield measured(name, got) if quick else promise(name, promised, got, whole - own <= MOST_PRELOADED_MS)


def rows(lab: Lab, *, quick: bool) -> Iterator[Row]:
    """Calls, then starts."""
    yield from calls(lab, quick=quick)
    yield from start(lab, quick=quick)
