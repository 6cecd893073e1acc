"""Which of the GPUs that would do a pod is put on: one loop, a named preference for each policy."""

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Final, NamedTuple

from gpushare.model.allocation import Allocation, allocate_on, allocate_over
from gpushare.model.device import NodeDevices, Placement
from gpushare.model.nearness import MOST_GPUS, best_set
from gpushare.model.request import Request


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
    """The GPU with the most left over, then the fewest pods, then the lower index: pods disturb each other least."""
    return -candidate.left_mib, candidate.pods, candidate.row


def least_fragmenting(candidate: Candidate) -> tuple[int, ...]:
    """The GPU that leaves most to the requests that are to be expected, then the tightest."""
    return candidate.grown, *tightest(candidate)


PREFERENCES: Final[Mapping[Placement, type_of_preference]] = {
    Placement.BINPACK: tightest,
    Placement.SPREAD: roomiest,
    Placement.FRAGMENTATION: least_fragmenting,
}


def chosen(node: NodeDevices, candidates: list[Candidate], request: Request) -> Allocation | None:
    """What the node gives ``request`` of these, ``None`` if they are not enough."""
    if request.gpu_count == 1 and not request.by_gpu:
        row = choose(node.placement, candidates)
        return None if row is None else allocate_on(node, node.devices[row], request)
    rows = choose_several(node, candidates, request)
    return None if rows is None else allocate_over(node, [node.devices[row] for row in rows], request)


def choose(placement: Placement, candidates: Iterable[Candidate]) -> int | None:
    """The row of the GPU that ``placement`` prefers, or ``None`` where there is no candidate."""
    best = min(candidates, key=PREFERENCES[placement], default=None)
    return None if best is None else best.row


def choose_several(
    node: NodeDevices, candidates: Iterable[Candidate], request: Request
) -> tuple[int, ...] | None:
    """The rows of the GPUs that the request gets, as many as it asks for; ``None`` where there are fewer candidates.

    Those whose farthest two are nearest; of equals those that the node's placement prefers, where memory is asked for, then what
    ``model.nearness`` prefers. On nodes with more than ``MOST_GPUS`` the placement alone decides.
    """
    preference = PREFERENCES[node.placement]
    found = sorted(candidates, key=preference)
    if len(found) < request.gpu_count:
        return None
    numa = tuple(device.numa_node for device in node.devices)
    if len(node.devices) > MOST_GPUS or (not node.near and len(set(numa)) == 1):
        return tuple(one.row for one in found[: request.gpu_count])
    wish: dict[int, int] | None = None
    if not request.by_gpu:
        # All preferences end with the row, which comes last of all here.
        alike = groupby(found, key=lambda one: preference(one)[:-1])
        wish = {one.row: rank for rank, (_, its) in enumerate(alike) for one in its}
    return best_set(node.near, numa, [one.row for one in found], request.gpu_count, wish=wish)
