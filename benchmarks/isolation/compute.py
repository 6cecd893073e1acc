"""The compute limit: whether each container gets its share of the GPU's time.

Shares are percent of the fake GPU's engine time, by its own accounts, not by a library. Each load runs for a
second before its share is measured, since a share is guaranteed from then on.
"""

import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice

from benchmarks.isolation.bed import Bed, Container, Share
from benchmarks.isolation.cases import Case, Figures, rows
from benchmarks.isolation.peer import Peer
from benchmarks.isolation.running import finish, send
from benchmarks.isolation.table import Row

PERCENTS = (10, 30, 50, 70, 90)
#: Kernels of one kind: most of the first length, one in twenty of the second.
UNEVEN = {
    "2 µs, one in 20 of 2 ms": "uneven:2000:2000000",
    "2 ms, one in 20 of 2 µs": "uneven:2000000:2000",
    "40 µs, one in 20 of 2 µs": "uneven:40000:2000",
}
LENGTHS = {"0.05 ms": 50_000, "1 ms": 1_000_000, "20 ms": 20_000_000, "200 ms": 200_000_000}
#: The tolerance of a share, in percent of the GPU.
TOLERANCE = 5.0
#: The tolerance for a container with the whole GPU.
TOLERANCE_OF_ALL = 3.0
SETTLING_SECONDS = 1.0
#: Libraries whose deviations differ by less than this are level.
LEVEL = 1.0
#: Number of cases measured at a time: a load of kernels needs a twentieth of a processor. Copies need the whole machine, and programs
#: that wait for each of their kernels must wake up immediately.
PARALLEL, PARALLEL_WAITING = 6, 2


@dataclass(frozen=True, slots=True)
class Load:
    """A container with one program."""

    share: Share
    work: str
    streams: int = 1


def start(bed: Bed, loads: Sequence[Load]) -> list[subprocess.Popen[str]]:
    """Each load in its own container, after the settling time."""
    processes = [
        bed.load(bed.container(f"c{number}", load.share), [load.work, str(load.streams)])
        for number, load in enumerate(loads)
    ]
    for process in processes:
        send(process, "go")
    bed.wait(SETTLING_SECONDS)
    return processes


def bare(work: str, seconds: float) -> float:
    """GPU time of a single program without a limit."""
    with Bed(arbiter=False) as bed:
        process = bed.load(None, [work])
        send(process, "go")
        bed.wait(SETTLING_SECONDS)
        return bed.shares([process], seconds)[0]


def share_case(
    name: str,
    wanted: Figures,
    measure: Callable[[Peer | None], Figures],
    *,
    tolerance: float = TOLERANCE,
    ours_only: bool = False,
) -> Case:
    """A row about several containers holds if each of them is near its share."""

    def off(got: Figures) -> float:
        return max(abs(share - percent) for share, percent in zip(got, wanted, strict=True))

    return Case(
        name,
        [float(share) for share in wanted],
        "%",
        f"± {tolerance:g}",
        measure,
        off,
        lambda got: off(got) <= tolerance,
        LEVEL,
        ours_only,
    )


def measured(
    name: str,
    loads: Sequence[Load],
    seconds: float,
    tolerance: float = TOLERANCE,
    wanted: Figures | None = None,
) -> Case:
    """The share of each of the loads in ``seconds``."""

    def measure(peer: Peer | None) -> Figures:
        with Bed(peer) as bed:
            return bed.shares(start(bed, loads), seconds)

    percents = [float(load.share.percent or 100) for load in loads]
    ours_only = any(load.share.policy != "hard" for load in loads)
    return share_case(name, wanted or percents, measure, tolerance=tolerance, ours_only=ours_only)


def alone(seconds: float) -> Iterator[tuple[int, list[Case]]]:
    """Single containers, by percentage and length of kernel."""
    for length, nanoseconds in LENGTHS.items():
        cases = [
            measured(
                f"alone, kernels of {length}, {percent}%",
                [Load(Share(percent), f"kernels:{nanoseconds}")],
                seconds,
            )
            for percent in PERCENTS
        ]
        all_of_it = Load(Share(100), f"kernels:{nanoseconds}")
        cases.append(measured(f"alone, kernels of {length}, 100%", [all_of_it], seconds, TOLERANCE_OF_ALL))
        yield PARALLEL, cases


def kinds(seconds: float) -> Iterator[tuple[int, list[Case]]]:
    """Other work than one queue of kernels."""
    works = {
        "4 streams of 0.05 ms": ("kernels:50000", 4, PARALLEL),
        "4 streams of 1 ms": ("kernels:1000000", 4, PARALLEL),
        "4 streams of 20 ms": ("kernels:20000000", 4, PARALLEL),
        "graphs of 20 kernels of 0.05 ms": ("graphs:50000:20", 1, PARALLEL),
        "cooperative kernels of 0.05 ms": ("cooperative:50000", 1, PARALLEL),
        "cooperative kernels of 20 ms": ("cooperative:20000000", 1, PARALLEL),
        "copies of 1 MiB": (f"copies:{1 << 20}", 1, 1),
    }
    for name, (work, streams, parallel) in works.items():
        yield (
            parallel,
            [
                measured(f"alone, {name}, {percent}%", [Load(Share(percent), work, streams)], seconds)
                for percent in PERCENTS
            ],
        )


def waited_for(seconds: float) -> Iterator[tuple[int, list[Case]]]:
    """Kernels that are each waited for leave gaps, long ones on a busy machine, so only a share of the possible time may be
    reachable."""
    possible = cache(bare)

    def case(length: str, work: str, percent: int) -> Case:
        def measure(peer: Peer | None) -> Figures:
            most = possible(work, seconds / 2)
            with Bed(peer) as bed:
                return [*bed.shares(start(bed, [Load(Share(percent), work)]), seconds / 2), most]

        def off(got: Figures) -> float:
            share, most = got
            return max(percent * most / 100 - share, share - percent, 0.0)

        return Case(
            f"alone, each kernel of {length} waited for, {percent}%; without limit",
            [float(percent), 100.0],
            "%",
            f"± {TOLERANCE:g}, or in part",
            measure,
            off,
            lambda got: off(got) <= TOLERANCE,
            LEVEL,
        )

    for length, work in {"0.05 ms": "single:50000", "1 ms": "single:1000000"}.items():
        yield PARALLEL_WAITING, [case(length, work, percent) for percent in (30, 70)]


def soon(_seconds: float) -> Iterator[tuple[int, list[Case]]]:
    """Shares are reached within a second: only the second second is measured."""
    lengths = [length for length in LENGTHS if length != "200 ms"]
    yield (
        PARALLEL,
        [
            measured(
                f"the second second alone, kernels of {length}, {percent}%",
                [Load(Share(percent), f"kernels:{LENGTHS[length]}")],
                1.0,
            )
            for length in lengths
            for percent in (10, 50, 90)
        ],
    )


def together(seconds: float) -> Iterator[tuple[int, list[Case]]]:
    """Pairs and triples, of equal and of unequal kernels."""
    groups: list[tuple[int, ...]] = [(30, 70), (50, 50), (10, 90), (30, 30, 30)]
    for length, nanoseconds in LENGTHS.items():
        yield (
            PARALLEL,
            [
                measured(
                    f"{' + '.join(map(str, group))}, kernels of {length}",
                    [Load(Share(percent), f"kernels:{nanoseconds}") for percent in group],
                    seconds,
                )
                for group in groups
            ],
        )
    long_and_short = [Load(Share(10), "kernels:200000000"), Load(Share(90), "kernels:50000")]
    mixed = [Load(Share(30), f"kernels:{length}") for length in (50_000, 1_000_000, 20_000_000)]
    many = [
        Load(Share(30), "kernels:50000", 4),
        Load(Share(30), "graphs:50000:20"),
        Load(Share(30), "kernels:1000000"),
    ]
    yield (
        PARALLEL,
        [
            measured("10 with kernels of 200 ms + 90 of 0.05 ms", long_and_short, seconds * 2),
            measured("30 + 30 + 30, kernels of 0.05, 1 and 20 ms", mixed, seconds),
            measured("30 in 4 streams + 30 in graphs + 30", many, seconds),
        ],
    )


def uneven(seconds: float) -> Iterator[tuple[int, list[Case]]]:
    """Kernels of one kind and very different lengths, alone and with a loop."""
    for lengths, work in UNEVEN.items():
        load, loop = Load(Share(30), work), Load(Share(70), "kernels:1000000")
        yield (
            PARALLEL_WAITING,
            [
                measured(f"alone, kernels of {lengths}, 30%", [load], seconds),
                measured(f"30 + 70, kernels of {lengths}, and of 1 ms", [load, loop], seconds),
            ],
        )


def a_third(seconds: float) -> Iterator[tuple[int, list[Case]]]:
    """Two tenants try to exceed their shares; measured is a third."""
    greedy = {
        "4 streams of 200 ms": ("kernels:200000000", 4),
        "16 streams of 0.05 ms": ("kernels:50000", 16),
        "graphs of 200 kernels of 0.1 ms": ("graphs:100000:200", 1),
    }

    def case(name: str, work: str, streams: int, length: str) -> Case:
        def measure(peer: Peer | None) -> Figures:
            loads = [Load(Share(35), work, streams)] * 2 + [Load(Share(30), f"kernels:{LENGTHS[length]}")]
            with Bed(peer) as bed:
                return bed.shares(start(bed, loads)[2:], seconds)

        return share_case(f"30% in kernels of {length} beside two of 35% with {name}", [30], measure)

    yield (
        PARALLEL,
        [case(name, *what, length) for name, what in greedy.items() for length in ("0.05 ms", "1 ms")],
    )


def _time_paid_back(_peer: Peer | None) -> Figures:
    with Bed() as bed:
        first = bed.load(bed.container("borrower", Share(30, "idle")), ["kernels:50000"])
        owner: Container = bed.container("owner", Share(70))
        second = bed.load(owner, ["kernels:50000"])
        send(first, "go")
        bed.wait(SETTLING_SECONDS)
        got = []
        for _ in range(5):
            send(second, "go")
            bed.wait(0.2)
            got.append(bed.shares([second], 0.5)[0])
            finish(second)
            bed.wait(0.2)
            second = bed.load(owner, ["kernels:50000"])
    return [sorted(got)[2]]


def idle(seconds: float) -> Iterator[tuple[int, list[Case]]]:
    """The policy `idle`: unused time is lent, and returned on demand."""
    borrower = Load(Share(30, "idle"), "kernels:50000")
    both = [borrower, Load(Share(50), "kernels:50000")]
    yield (
        PARALLEL,
        [
            measured("idle policy, 30% alone", [borrower], seconds, wanted=[100]),
            measured("idle policy, 30% beside a hard 50%", both, seconds, wanted=[50, 50]),
        ],
    )
    name = "idle policy: the owner of 70%, 200 ms after it began (median of 5)"
    yield 1, [share_case(name, [70], _time_paid_back, ours_only=True)]


def misfortune(seconds: float) -> Iterator[tuple[int, list[Case]]]:
    """Neighbours and arbiters that stop, die or start."""
    loads = [Load(Share(30), "kernels:1000000"), Load(Share(70), "kernels:50000")]
    length = seconds / 2

    def with_signal(number: signal.Signals) -> Callable[[Peer | None], Figures]:
        def measure(peer: Peer | None) -> Figures:
            with Bed(peer) as bed:
                processes = start(bed, loads)
                processes[0].send_signal(number)
                return bed.shares([processes[1]], length)

        return measure

    def never(_peer: Peer | None) -> Figures:
        with Bed(arbiter=False) as bed:
            return bed.shares(start(bed, loads[1:]), length)

    def gone(*, another: bool) -> Callable[[Peer | None], Figures]:
        def measure(_peer: Peer | None) -> Figures:
            with Bed() as bed:
                processes = start(bed, loads)
                assert bed.arbiter is not None
                bed.arbiter.kill()
                bed.wait(1.5)
                if another:
                    bed.start_arbiter()
                    bed.wait(SETTLING_SECONDS)
                return bed.shares(processes, length)

        return measure

    def bounded(got: Figures) -> bool:
        return min(got) > TOLERANCE and got[0] <= 30 + TOLERANCE and got[1] <= 70 + TOLERANCE

    without = "30 + 70, the arbiter was killed"
    yield (
        PARALLEL,
        [
            share_case("70% beside a container that was stopped at work", [70], with_signal(signal.SIGSTOP)),
            share_case("70% beside a container that was killed at work", [70], with_signal(signal.SIGKILL)),
            share_case("70%, no arbiter has ever been there", [70], never, ours_only=True),
            share_case("30 + 70, another arbiter has begun", [30, 70], gone(another=True), ours_only=True),
            Case(
                without,
                [30.0, 70.0],
                "%",
                "at most, and some",
                gone(another=False),
                max,
                bounded,
                ours_only=True,
            ),
        ],
    )


SUBJECTS: tuple[Callable[[float], Iterator[tuple[int, list[Case]]]], ...] = (
    alone,
    kinds,
    waited_for,
    soon,
    together,
    uneven,
    a_third,
    idle,
    misfortune,
)


def measure(peer: Peer | None, *, quick: bool) -> Iterator[Row]:
    """Every row of the table; a quick run has the first ones of each subject."""
    seconds = 0.5 if quick else 10.0
    for subject in SUBJECTS:
        for parallel, cases in islice(subject(seconds), 1 if quick else None):
            yield from rows(cases[:parallel] if quick else cases, peer, parallel=parallel)
