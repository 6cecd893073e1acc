"""What our libraries add to a call: the same program without a limit, with one of memory, and with one of compute."""

from collections.abc import Iterator, Mapping
from contextlib import nullcontext

from benchmarks.gpu_check.lab import SPIN, TROUBLES, Lab, Share, Unanswered
from benchmarks.gpu_check.report import Row, measured, promise

TITLE = "Costs of calls"

#: What may be added, in nanoseconds: by a memory limit, by a compute limit too. A call that is not named has no bound.
MOST_ADDED_NS: Mapping[str, tuple[float, float]] = {
    "cuCtxGetCurrent": (100, 100),
    "cuStreamSynchronize": (100, 300),
    "cuLaunchKernel": (100, 300),
    "cuMemAlloc_v2+cuMemFree_v2,64KiB": (2000, 2000),
    "cuMemAlloc_v2,2MiB": (2000, 2000),
}
REPEATED = 3


def once(lab: Lab, share: Share | None, series: int) -> dict[str, float]:
    """Nanoseconds by name of the call."""
    with lab.arbiter() if share and share.percent else nullcontext():
        container = lab.container(share) if share else None
        ended = lab.run(container, lab.programs / "call_costs", SPIN, str(series), timeout_s=60)
    if not ended.good:
        raise Unanswered(ended.trouble())
    return {name: float(value) for name, value in (line.split() for line in ended.out.splitlines())}


def rows(lab: Lab, *, quick: bool) -> Iterator[Row]:
    """The least of several medians each, in turn, so that a busy moment does not count for one of them alone. In a quick
    run they are only measured."""
    room_mib = lab.room_mib(512)
    ways: dict[str, Share | None] = {
        "no limit": None,
        "memory": Share(room_mib),
        "memory and compute, 100%": Share(room_mib, 100),
    }
    least: dict[str, dict[str, float]] = {way: {} for way in ways}
    try:
        for _ in range(1 if quick else REPEATED):
            for way, share in ways.items():
                for name, value in once(lab, share, 5 if quick else 100).items():
                    least[way][name] = min(value, least[way].get(name, value))
    except TROUBLES as error:
        yield promise("the calls", "are timed", error, False)
        return
    bare, memory, compute = least.values()
    for name, value in bare.items():
        added = (memory[name] - value, compute[name] - value)
        got = f"{value:.0f} ns; {added[0]:+.0f} ns by a memory limit, {added[1]:+.0f} ns with compute"
        if not quick and (bounds := MOST_ADDED_NS.get(name)):
            promised = f"at most +{bounds[0]:g} ns, +{bounds[1]:g} ns"
            holds = added[0] <= bounds[0] and added[1] <= bounds[1]
            yield promise(name, promised, got, holds)
        else:
            yield measured(name, got)
