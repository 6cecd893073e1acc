"""Which of the GPUs that would do a pod is put on: one loop, a named preference for each policy."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from gpushare.model.device import Placement


class Candidate(NamedTuple):
    """A GPU that can take the request: its row (rows are ordered by GPU index), MiB free before and after, pods.

    ``grown`` is by how much fragments grow there, worked out where the node's placement asks for it.
    """

    row: int
    free_mib: int
    left_mib: int
    pods: int
    grown: int = 0


type_of_preference = Callable[[Candidate], tuple[int, ...]]


def tightest(candidate: Candidate) -> tuple[int, ...]:
    """The GPU with the least left over, then the lower index: what is large stays whole for large pods."""
    return candidate.left_mib, candidate.row


def roomiest(candidate: Candidate) -> tuple[int, ...]:
    """The GPU with the most free, then the fewest pods, then the lower index: pods disturb each other least."""
    return -candidate.free_mib, candidate.pods, candidate.row


def least_fragmenting(candidate: Candidate) -> tuple[int, ...]:
    """The GPU that leaves most to the requests that are to be expected, then the tightest."""
    return candidate.grown, *tightest(candidate)


PREFERENCES: Final[Mapping[Placement, type_of_preference]] = {
    Placement.BINPACK: tightest,
    Placement.SPREAD: roomiest,
    Placement.FRAGMENTATION: least_fragmenting,
}


def choose(placement: Placement, candidates: Iterable[Candidate]) -> int | None:
    """The row of the GPU that ``placement`` prefers, or ``None`` where there is no candidate."""
    best = min(candidates, key=PREFERENCES[placement], default=None)
    return None if best is None else best.row


def choose_several(placement: Placement, candidates: Iterable[Candidate], count: int) -> list[int] | None:
    """The rows of the ``count`` GPUs that ``placement`` prefers, the best first; ``None`` where there are fewer."""
    found = sorted(candidates, key=PREFERENCES[placement])[:count]
    return [one.row for one in found] if len(found) == count else None
