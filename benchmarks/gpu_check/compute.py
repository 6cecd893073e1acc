"""The compute limit: the share of the GPU's time of each container.

A load counts completed work by the driver's events; its kernels run for a stated time, so completed work is
GPU time (``own_time.ptx``). Copies, whose time is unknown, are compared with their rate without a limit.
"""

import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass

from benchmarks.gpu_check.lab import SPIN, TROUBLES, Lab, Share
from benchmarks.gpu_check.report import Row, measured, not_run, promise
from benchmarks.gpu_check.running import Conversation

TITLE, FIRST_TITLE = "Compute", "Shares of the GPU's time"

TOLERANCE = 5.0
UTILIZATION_TOLERANCE = 3.0
UTILIZATION_READINGS = 5
SETTLING_S = 1.0
#: Bounds of the time for which a share is measured.
LEAST_S, MOST_S = 1.0, 6.0
PERCENTS = (10, 30, 50, 70, 90)
LENGTHS = {"0.05 ms": 50_000, "1 ms": 1_000_000, "20 ms": 20_000_000, "200 ms": 200_000_000}
#: Below this the load does not keep an otherwise idle GPU busy, and its shares are meaningless.
BUSY_ENOUGH = 90.0


@dataclass(frozen=True, slots=True)
class Load:
    """A program in its own container; no percentage: without a limit."""

    work: str
    percent: int | None = None
    policy: str = "hard"
    streams: int = 1

    @property
    def unit_ns(self) -> int | None:
        """GPU time of a unit of its work, if known."""
        kind, size, *more = self.work.split(":")
        return None if kind == "copies" else int(size) * int(more[0] if more else 1)


def progress(program: Conversation) -> tuple[int, ...]:
    """The time, and the completed work; for a service also the median and the 99th percentile of its times since, in ns."""
    return tuple(map(int, program.ask("look").split()))


@contextmanager
def at_work(lab: Lab, loads: Sequence[Load], *, under_peer: bool = False) -> Iterator[list[Conversation]]:
    """Each of the loads in its own container, or under the other library, after the settling time."""
    limited = any(load.percent for load in loads) and not under_peer
    with ExitStack() as stack:
        stack.enter_context(lab.arbiter() if limited else nullcontext())
        programs = []
        for load in loads:
            share = Share(lab.room_mib(512), load.percent, load.policy)
            program = stack.enter_context(
                lab.program(
                    lab.container(share) if load.percent and not under_peer else None,
                    lab.programs / "paced_load",
                    SPIN,
                    load.work,
                    str(load.streams),
                    **(lab.under_peer(share) if under_peer else {}),
                )
            )
            programs.append(program)
        for program in programs:
            program.answer()
        for program in programs:
            program.send("go")
        lab.clock.sleep(SETTLING_S)
        yield programs


def rates(lab: Lab, loads: Sequence[Load], seconds: float, *, under_peer: bool = False) -> list[float]:
    """The work per second of each load, by its own clock, all running at once."""
    with at_work(lab, loads, under_peer=under_peer) as programs:
        before = [progress(program) for program in programs]
        lab.clock.sleep(seconds)
        after = [progress(program) for program in programs]
    return [
        (done - done_before) * 1e9 / (at_ns - before_ns)
        for (before_ns, done_before, *_), (at_ns, done, *_) in zip(before, after, strict=True)
    ]


def shares(lab: Lab, loads: Sequence[Load], seconds: float, *, under_peer: bool = False) -> list[float]:
    """Percent of the GPU's time of each load; copies: NaN."""
    return [
        rate * (load.unit_ns or float("nan")) / 1e7
        for load, rate in zip(loads, rates(lab, loads, seconds, under_peer=under_peer), strict=True)
    ]


def enough(lab: Lab, loads: Sequence[Load], seconds: float) -> float:
    """The measuring time; longer if a single piece of work is long: 40 of them, if there is time; at most 12 s."""
    longest = max(load.unit_ns or 0 for load in loads)
    return min(12.0, max(seconds, 40 * longest / 1e9), max(1.0, lab.clock.left_s() / 4))


def about(loads: Sequence[Load]) -> str:
    """A description of the loads."""
    words = []
    for load in loads:
        kind, size, *more = load.work.split(":")
        length = next((name for name, ns in LENGTHS.items() if str(ns) == size), f"{size} ns")
        what = {
            "kernels": f"kernels of {length}",
            "single": f"kernels of {length}, each waited for",
            "cooperative": f"cooperative kernels of {length}",
            "graphs": f"graphs of {more[0] if more else 1} kernels of {length}",
            "copies": f"copies of {int(size) >> 20} MiB",
        }[kind]
        policy = ", idle policy" if load.policy == "idle" else ""
        streams = f" in {load.streams} streams" if load.streams > 1 else ""
        words.append(f"{load.percent}%{policy}: {what}{streams}" if load.percent else what + streams)
    return "; ".join(words)


def row(
    lab: Lab,
    loads: Sequence[Load],
    seconds: float,
    wanted: Sequence[float] | None = None,
    *,
    promised: bool = True,
) -> Row:
    """Each of the loads gets its share; not ``promised``: only measured."""
    wanted = wanted or [float(load.percent or 0) for load in loads]
    shared = " + ".join(f"{share:g}" for share in wanted) + f" ± {TOLERANCE:g} %"
    if lab.clock.left_s() < SETTLING_S + seconds + 5:
        return not_run(about(loads), "no time left for it")
    try:
        got = shares(lab, loads, enough(lab, loads, seconds))
    except TROUBLES as error:
        return promise(about(loads), shared, error, False)
    measured_shares = " + ".join(f"{share:.1f}" for share in got) + " %"
    if not promised:
        return measured(about(loads), measured_shares)
    holds = all(abs(share - aim) <= TOLERANCE for share, aim in zip(got, wanted, strict=True))
    return promise(about(loads), shared, measured_shares, holds)


def bare(lab: Lab, seconds: float) -> Iterator[Row]:
    """Without a limit a load must use the whole GPU, otherwise it is wrong and the rest is meaningless."""
    for nanoseconds in LENGTHS.values():
        load = Load(f"kernels:{nanoseconds}")
        try:
            got = shares(lab, [load], enough(lab, [load], seconds))[0]
        except TROUBLES as error:
            yield promise(f"no limit, {about([load])}", "the whole GPU, or shares mean nothing", error, False)
            continue
        holds = BUSY_ENOUGH <= got <= 100 + TOLERANCE
        yield promise(
            f"no limit, {about([load])}", "the whole GPU, or shares mean nothing", f"{got:.1f} %", holds
        )
    pair = [Load("kernels:1000000"), Load("kernels:1000000")]
    try:
        got_both = shares(lab, pair, seconds)
    except TROUBLES as error:
        yield promise("no limit, two such programs", "can be measured", error, False)
        return
    yield measured(
        "no limit, two programs side by side: kernels of 1 ms",
        " + ".join(f"{one:.1f}" for one in got_both) + " %",
    )


def copies(lab: Lab, seconds: float, percents: Sequence[int]) -> Iterator[Row]:
    """Copies compared with their rate without a limit, before and after."""
    work = f"copies:{16 << 20}"
    try:
        whole = [rates(lab, [Load(work)], seconds)[0]]
        held = {percent: rates(lab, [Load(work, percent)], seconds)[0] for percent in percents}
        whole.append(rates(lab, [Load(work)], seconds)[0])
    except TROUBLES as error:
        yield promise(about([Load(work)]), "can be measured", error, False)
        return
    possible = statistics.mean(whole)
    yield measured(f"no limit, {about([Load(work)])}", f"{possible * (16 << 20) / 1e9:.2f} GB/s")
    for percent, rate in held.items():
        share = 100 * rate / possible if possible else 0.0
        name, got = about([Load(work, percent)]), f"{share:.1f} % of the rate without"
        if lab.driver.fake:
            # There the processor moves the bytes, and a busy one does not reach the bus's rate.
            yield measured(name, got)
        else:
            good = abs(share - percent) <= TOLERANCE
            yield promise(name, f"{percent} ± {TOLERANCE:g} % of the rate without", got, good)


def utilization(lab: Lab, percent: int) -> Row:
    """NVML's utilization inside a container with a share."""
    name = f"NVML's utilization inside, kernels of 1 ms at {percent}%"
    promised = f"{percent} ± {UTILIZATION_TOLERANCE:g} %"
    container = lab.container(Share(lab.room_mib(512), percent))
    load = (lab.programs / "paced_load", SPIN, "kernels:1000000")
    try:
        with lab.arbiter(), lab.program(container, *load) as program:
            program.answer()
            program.send("go")
            lab.clock.sleep(2 * SETTLING_S)
            readings = []
            for _ in range(UTILIZATION_READINGS):
                lab.clock.sleep(0.3)
                readings.append(lab.answers(container).get("utilization", [0])[0])
    except TROUBLES as error:
        return promise(name, promised, error, False)
    got = f"{statistics.mean(readings):.1f} % ({', '.join(map(str, readings))})"
    return promise(name, promised, got, abs(statistics.mean(readings) - percent) <= UTILIZATION_TOLERANCE)


def plan(quick: bool) -> Iterator[tuple[list[Load], list[float] | None]]:
    """Loads that run together, and their expected shares if these differ from their percentages. The most informative come
    first: there may not be time for all."""
    if quick:
        yield [Load("graphs:50000:20", 30)], None
        return
    kernels = {name: f"kernels:{length}" for name, length in LENGTHS.items()}
    for percent in PERCENTS:
        yield [Load(kernels["1 ms"], percent)], None
    for pair in ((30, 70), (50, 50), (10, 90)):
        yield [Load(kernels["1 ms"], percent) for percent in pair], None
    yield [Load(kernels["0.05 ms"], 30), Load(kernels["20 ms"], 70)], None
    yield [Load(kernels["0.05 ms"], 30), Load(kernels["1 ms"], 30), Load(kernels["20 ms"], 30)], None
    for percent in (30, 70):
        yield [Load(kernels["0.05 ms"], percent)], None
        yield [Load(kernels["20 ms"], percent)], None
        yield [Load(kernels["1 ms"], percent, streams=4)], None
        yield [Load("graphs:50000:20", percent)], None
    yield [Load("cooperative:50000", 50)], None
    yield [Load(kernels["1 ms"], 30, "idle")], [100.0]
    yield [Load(kernels["1 ms"], 30, "idle"), Load(kernels["1 ms"], 50)], [50.0, 50.0]
    for percent in (30, 70):
        yield [Load(kernels["200 ms"], percent)], None
    for percent in (10, 50, 90):
        yield [Load(kernels["0.05 ms"], percent)], None
        yield [Load(kernels["20 ms"], percent)], None


def first_rows(lab: Lab, *, quick: bool) -> Iterator[Row]:
    """One container and two: there is time for these in every run."""
    for loads in (
        [Load("kernels:1000000", 30)],
        [Load("kernels:1000000", 30), Load("kernels:50000", 70)],
    ):
        seconds = LEAST_S if quick else 2 * LEAST_S
        yield row(lab, loads, seconds, promised=not quick)
        if lab.peer:
            name = f"{lab.peer.name}, {about(loads)}"
            try:
                got = shares(lab, loads, seconds, under_peer=True)
            except TROUBLES as error:
                yield measured(name, error)
                continue
            yield measured(name, " + ".join(f"{share:.1f}" for share in got) + " %")


def rows(lab: Lab, *, quick: bool) -> Iterator[Row]:
    """Without a limit first; then one container, several, and other kinds of work, which use the remaining time."""
    if quick:
        for loads, wanted in plan(quick):
            yield row(lab, loads, LEAST_S, wanted, promised=False)
        return
    yield from bare(lab, 2 * LEAST_S)
    yield utilization(lab, 30)
    groups = list(plan(quick))
    for number, (loads, wanted) in enumerate(groups):
        # Copies take four more; each has to start, to settle and to end.
        each_s = lab.clock.left_s() / (len(groups) - number + 4) - 2 * SETTLING_S - 1
        yield row(lab, loads, min(MOST_S, max(2 * LEAST_S, each_s)), wanted)
    if lab.clock.left_s() > 30:
        yield from copies(lab, 2 * LEAST_S, (30, 70))
    else:
        yield not_run("copies", "no time left for them")
