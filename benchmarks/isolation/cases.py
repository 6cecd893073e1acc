"""The measured cases: each on our libraries, and on a peer's if one is given."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat

from benchmarks.isolation.peer import Peer
from benchmarks.isolation.running import Ended
from benchmarks.isolation.table import Outcome, Row, Standing

Figures = Sequence[float]


@dataclass(frozen=True, slots=True)
class Case:
    """One row. ``off`` is compared with a peer: the distance from the wanted value, or the amount; less is better."""

    name: str
    wanted: Figures
    unit: str
    note: str
    #: Measures a peer, or ours (None).
    measure: Callable[[Peer | None], Figures]
    off: Callable[[Figures], float]
    good: Callable[[Figures], bool] | None = None
    #: Smaller differences to the peer's do not count.
    level: float = 0.0
    #: Whether a peer has no such feature.
    ours_only: bool = False


def outcome(case: Case, peer: Peer | None) -> Outcome:
    """The figures, or how the program ended."""
    if peer and case.ours_only:
        return "has none"
    try:
        return case.measure(peer)
    except Ended as error:
        return str(error)


def standing(case: Case, got: Outcome, theirs: Outcome) -> Standing:
    """Compares ours with the peer's; one without figures is behind one with figures."""
    if isinstance(got, str) or isinstance(theirs, str):
        return (
            "level"
            if isinstance(got, str) and isinstance(theirs, str)
            else ("behind" if isinstance(got, str) else "ahead")
        )
    difference = case.off(theirs) - case.off(got)
    if abs(difference) <= case.level:
        return "level"
    return "ahead" if difference > 0 else "behind"


def row(case: Case, got: Outcome, theirs: Outcome | None) -> Row:
    """The row of a measured case."""
    good = None
    if isinstance(got, str):
        good = False
    elif case.good:
        good = case.good(got)
    return Row(
        case.name,
        case.wanted,
        got,
        case.unit,
        good,
        case.note,
        theirs,
        None if theirs is None else standing(case, got, theirs),
    )


def rows(cases: Iterable[Case], peer: Peer | None, *, parallel: int = 1) -> Iterator[Row]:
    """Measures ``parallel`` cases at a time: each has its own GPU and arbiter, so they share only the machine's processors."""
    cases = list(cases)
    with ThreadPoolExecutor(parallel) as pool:
        for first in range(0, len(cases), parallel):
            group = cases[first : first + parallel]
            got = list(pool.map(outcome, group, repeat(None)))
            theirs = list(pool.map(outcome, group, repeat(peer))) if peer else [None] * len(group)
            yield from map(row, group, got, theirs)
