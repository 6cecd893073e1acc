"""The cost of isolation: a call, an allocation among many, the start of many, and whole loops.

Everything is relative to the bare fake driver in the same minute: batches with and without isolation alternate. For calls the least
disturbed quarter of the batches counts, for starts and loops the median. So a busy machine makes rows uncertain, but not wrong.
"""

import statistics
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from benchmarks.isolation.bed import OWN, Bed, Container, Share
from benchmarks.isolation.cases import Case, Figures, rows
from benchmarks.isolation.peer import Peer
from benchmarks.isolation.running import Ended, line, manner, run, send
from benchmarks.isolation.table import Row

#: 64 contexts must fit in addition to their allocations.
CONTEXT_MIB = 16
PROCESSES = 64
MOST_HOOKED_NS = 100.0
MOST_LIMITED_LAUNCH_NS = 300.0
MOST_ALLOCATION_NS = 2000.0
MOST_START_RATIO = 1.2
MOST_PRELOADED_MS = 1.0
#: Smaller differences to a peer's do not count: of a call, of a ratio, of a loop in percent, of the start of a program.
LEVEL_NS, LEVEL_RATIO, LEVEL_PERCENT, LEVEL_MS = 10.0, 0.05, 1.0, 0.05
MEMORY_MIB = 12288


@dataclass(frozen=True, slots=True)
class Call:
    """A call of call_cost.c, and the number of calls per batch."""

    name: str
    word: str
    often: int
    most_ns: float | None


HOOKED = (
    Call("a launch", "launch", 250, MOST_HOOKED_NS),
    Call("a copy that is queued", "copy", 250, MOST_HOOKED_NS),
    Call("a wait for an idle stream", "wait", 1000, MOST_HOOKED_NS),
    Call("the look-up of a function", "look-up", 1000, MOST_HOOKED_NS),
)
MEMORY = (
    Call("2 MiB taken", "take", 64, MOST_ALLOCATION_NS),
    Call("2 MiB given back", "give", 64, MOST_ALLOCATION_NS),
    Call("256 bytes taken", "take-small", 64, MOST_ALLOCATION_NS),
    Call("256 bytes given back", "give-small", 64, MOST_ALLOCATION_NS),
    Call("2 MiB taken from a pool", "take-async", 16, MOST_ALLOCATION_NS),
)


def caller(bed: Bed, container: Container | None, word: str) -> subprocess.Popen[str]:
    """A program that makes calls on request; it may still be starting."""
    return bed.start(container, [OWN / "call_cost", word])


def ready(process: subprocess.Popen[str]) -> subprocess.Popen[str]:
    """Wait until the program is ready."""
    while line(process, 60.0) != "ready":
        pass
    return process


def batch(processes: Sequence[subprocess.Popen[str]], often: int, *, cpu: bool = False) -> float:
    """Nanoseconds per call, the mean of all processes; ``cpu``: only processor time."""
    for process in processes:
        send(process, str(often))
    figures = [[float(word) for word in line(process).split()] for process in processes]
    return statistics.fmean(figure[1 if cpu else 0] for figure in figures)


class Pair:
    """The bare driver and a container, each on its own ``Bed``."""

    def __init__(self, peer: Peer | None, share: Share) -> None:
        self._stack = ExitStack()
        self.bare = self._stack.enter_context(Bed(arbiter=False, context_mib=CONTEXT_MIB))
        self.limited = self._stack.enter_context(
            Bed(peer, arbiter=share.percent is not None, context_mib=CONTEXT_MIB)
        )
        self.container = self.limited.container("c", share)

    def __enter__(self) -> "Pair":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def callers(
        self, word: str, count: int
    ) -> tuple[list[subprocess.Popen[str]], list[subprocess.Popen[str]]]:
        """``count`` programs on each of the two."""
        bare = [caller(self.bare, None, word) for _ in range(count)]
        limited = [caller(self.limited, self.container, word) for _ in range(count)]
        return [ready(process) for process in bare], [ready(process) for process in limited]


def call_case(call: Call, name: str, share: Share, batches: int, pairs: int) -> Case:
    """The added cost of a call by one program, and its cost on the bare driver.

    The median of several pairs of programs: the location of a program's pages makes its calls up to 100 ns slower as long as it
    runs.
    """

    def difference(peer: Peer | None) -> Figures:
        with Pair(peer, share) as pair:
            (bare,), (limited,) = pair.callers(call.word, 1)
            return paired(batches, lambda: batch([bare], call.often), lambda: batch([limited], call.often))

    def measure(peer: Peer | None) -> Figures:
        return sorted((difference(peer) for _ in range(pairs)), key=lambda got: got[0])[pairs // 2]

    return nanoseconds_case(name, call.most_ns, measure)


def paired(batches: int, bare: Callable[[], float], limited: Callable[[], float]) -> Figures:
    """Alternating batches: the difference, and the bare time, by the least disturbed quarter of them."""
    figures = [(bare(), limited()) for _ in range(batches)]
    base, ours = (sorted(column)[batches // 4] for column in zip(*figures, strict=True))
    return [ours - base, base]


def nanoseconds_case(name: str, most_ns: float | None, measure: Callable[[Peer | None], Figures]) -> Case:
    """A row with one bound."""
    good = None if most_ns is None else (lambda got: got[0] <= most_ns)
    wanted = [] if most_ns is None else [most_ns]
    return Case(
        name, wanted, "ns", "at most; bare" if wanted else "", measure, lambda got: got[0], good, LEVEL_NS
    )


def crowd_case(call: Call, batches: int, *, at_once: bool) -> Case:
    """With 64 processes in the container: one calls while the others are idle, or all call."""

    def measure(peer: Peer | None) -> Figures:
        with Pair(peer, Share(memory_mib=MEMORY_MIB)) as pair:
            bare, limited = pair.callers(call.word, PROCESSES)
            if not at_once:
                bare, limited = bare[-1:], limited[-1:]
            return paired(
                batches,
                lambda: batch(bare, call.often, cpu=at_once),
                lambda: batch(limited, call.often, cpu=at_once),
            )

    how = "all at once (processor's time)" if at_once else "the others idle"
    return nanoseconds_case(f"{call.name}, {PROCESSES} processes, {how}", call.most_ns, measure)


def start_case(turns: int) -> Case:
    """64 processes start together in a new container."""

    def took_ms(bed: Bed, container: Container | None) -> float:
        code, text = run([OWN / "start_many", str(PROCESSES)], bed.environment(container), 60.0)
        if code:
            raise Ended(manner(code))
        return float(text)

    def measure(peer: Peer | None) -> Figures:
        share = Share(memory_mib=MEMORY_MIB)
        with (
            Bed(arbiter=False, context_mib=CONTEXT_MIB) as bare,
            Bed(peer, context_mib=CONTEXT_MIB) as limited,
        ):
            figures = [
                (took_ms(bare, None), took_ms(limited, limited.container(f"c{turn}", share)))
                for turn in range(turns)
            ]
        return [
            statistics.median(ours / base for base, ours in figures),
            statistics.median(base for base, _ in figures),
        ]

    return Case(
        f"{PROCESSES} processes begin at once: times as long as without; ms without",
        [MOST_START_RATIO],
        "",
        "times at most",
        measure,
        lambda got: got[0],
        lambda got: got[0] <= MOST_START_RATIO,
        LEVEL_RATIO,
    )


def preloaded_case(times: int) -> Case:
    """Start and end of a program without a GPU, with and without the libraries preloaded."""

    def measure(peer: Peer | None) -> Figures:
        with Bed(peer, arbiter=False) as bed:
            container = bed.container("c", Share())
            code, text = run([OWN / "start_plain", str(times)], bed.preloaded(container), 60.0)
        if code:
            raise Ended(manner(code))
        return [float(word) for word in text.split()]

    return Case(
        "a program without a GPU, the libraries preloaded: ms more; ms without",
        [MOST_PRELOADED_MS],
        "ms",
        "at most; bare",
        measure,
        lambda got: got[0],
        lambda got: got[0] <= MOST_PRELOADED_MS,
        LEVEL_MS,
    )


def loop_case(name: str, work: str, share: Share, most_percent: float, turns: int, seconds: float) -> Case:
    """A whole loop: the loss of throughput, by the engine's accounts."""

    def done(bed: Bed, container: Container | None) -> float:
        process = bed.load(container, [work])
        send(process, "go")
        bed.wait(0.5)
        share = bed.shares([process], seconds)[0]
        process.kill()
        process.wait()
        return share

    def measure(peer: Peer | None) -> Figures:
        with Bed(peer) as bed:
            container = bed.container("c", share)
            figures = [(done(bed, None), done(bed, container)) for _ in range(turns)]
        return [
            statistics.median(100 * (1 - ours / base) for base, ours in figures),
            statistics.median(base for base, _ in figures),
        ]

    return Case(
        f"{name}: slower by; GPU's use without",
        [most_percent],
        "%",
        "at most",
        measure,
        lambda got: max(got[0], 0.0),
        lambda got: got[0] <= most_percent,
        LEVEL_PERCENT,
    )


def measure(peer: Peer | None, *, quick: bool) -> Iterator[Row]:
    """Every row of the table."""
    batches, pairs, turns, seconds = (5, 1, 1, 0.2) if quick else (41, 5, 5, 1.0)
    free, half, whole = Share(), Share(50), Share(100)
    cases = [call_case(call, f"{call.name}, compute not limited", free, batches, pairs) for call in HOOKED]
    launch = Call("a launch", "launch", 250, MOST_LIMITED_LAUNCH_NS)
    cases.append(call_case(launch, "a launch under 50% with time in hand", half, batches, pairs))
    cases += [call_case(call, f"{call.name}, alone", free, batches, pairs) for call in MEMORY]
    cases += [crowd_case(call, batches, at_once=False) for call in (MEMORY[:1] if quick else MEMORY)]
    cases += [crowd_case(call, min(batches, 15), at_once=True) for call in MEMORY[: 1 if quick else 2]]
    cases += [start_case(turns if quick else 15), preloaded_case(20 if quick else 200)]
    loops = {
        "kernels of 0.05 ms, queued": "kernels:50000",
        "copies of 1 MiB, queued": f"copies:{1 << 20}",
    }
    for name, work in loops.items():
        cases.append(loop_case(f"{name}, compute not limited", work, free, 1.0, turns, seconds))
        cases.append(loop_case(f"{name}, 100%", work, whole, 3.0, turns, seconds))
    new_grids = loop_case(
        "kernels of 0.05 ms, each on a new grid, 100%", "grids:50000", whole, 10.0, turns, seconds
    )
    cases.append(new_grids)
    yield from rows(cases, peer)
