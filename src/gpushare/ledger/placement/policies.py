"""Which of the GPUs that would do a pod is put on: one loop, and for each policy what it prefers."""

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Final, NamedTuple

import numpy as np

from gpushare.api.allocation.allocation import Allocation, allocate_on, allocate_over
from gpushare.api.node.device import NodeDevices, Placement
from gpushare.api.node.topology import MOST_GPUS, best_set
from gpushare.api.request.request import Request
from gpushare.ledger.arrays import Ints, Mask


class Candidate(NamedTuple):
    """A GPU that can take the request: its row (rows are ordered by GPU index), MiB free before and after, pods.

    ``grown`` is by how much fragments grow there, worked out where the node's placement asks for it.
    """

    row: int
    free_mib: int
    left_mib: int
    pods: int
    grown: int = 0


PreferenceFn = Callable[[Candidate], tuple[int, ...]]
ChoiceFn = Callable[[Ints, Ints], Ints]


def tightest(candidate: Candidate) -> tuple[int, ...]:
    """The GPU with the least left over, then the lower index: what is large stays whole for large pods."""
    return candidate.left_mib, candidate.row


def roomiest(candidate: Candidate) -> tuple[int, ...]:
    """The GPU with the most left over, then the fewest pods, then the lower index: pods disturb each other least."""
    return -candidate.left_mib, candidate.pods, candidate.row


def least_fragmenting(candidate: Candidate) -> tuple[int, ...]:
    """The GPU that leaves most to the requests that are to be expected, then the tightest."""
    return candidate.grown, *tightest(candidate)


def in_order(candidate: Candidate) -> tuple[int, ...]:
    """The lower index."""
    return (candidate.row,)


#: More MiB than are left over of any GPU, and more pods than count.
MOST_LEFT: Final = 1 << 30
PODS: Final = 1 << 16


def _roomiest_of_many(left_mib: Ints, pods: Ints) -> Ints:
    found: Ints = (MOST_LEFT - left_mib) * PODS + np.minimum(pods, PODS - 1)
    return found


class Policy(NamedTuple):
    """How GPUs of a node are chosen, and nodes.

    ``prefers`` says of GPUs which is preferred, least first, and ends with their row; ``said`` is the same for people. ``wish`` is the
    same for thousands of GPUs at once, from what would be left over of each (MiB) and their pods, without the row; ``worth`` for
    nodes, from what would be left over of the GPUs that each would give and all pods of the node: whole numbers from 0 to
    ``MOST_LEFT * PODS``. ``None``: by what is left over, the least first.
    """

    prefers: PreferenceFn
    said: str
    wish: ChoiceFn | None = None
    worth: ChoiceFn | None = None


#: In the order of their numbers in ``columns``: what is first there is that of columns without a node.
POLICIES: Final[dict[Placement, Policy]] = {
    Placement.BINPACK: Policy(tightest, "the GPU on which the least is left over, then the lower index"),
    Placement.SPREAD: Policy(
        roomiest,
        "the GPU on which the most is left over, then the fewest pods, then the lower index",
        _roomiest_of_many,
        _roomiest_of_many,
    ),
    # What it has to know of nodes besides is worked out in ``growth``.
    Placement.FRAGMENTATION: Policy(
        least_fragmenting,
        "the GPU that leaves most to the requests that are to be expected, then the one on which the least is left over",
    ),
}


def number_of(placement: Placement) -> int:
    """What stands for it in arrays."""
    return list(POLICIES).index(placement)


def with_wishes(numbers: Ints) -> Iterator[tuple[Mask, ChoiceFn]]:
    """Of nodes with placements of these ``numbers`` those that wish for other GPUs than the tightest, and how; policy by policy."""
    for number, policy in enumerate(POLICIES.values()):
        if policy.wish is not None and (its := numbers == number).any():
            yield its, policy.wish


def chosen(node: NodeDevices, candidates: list[Candidate], request: Request) -> Allocation | None:
    """What the node gives ``request`` of these, ``None`` if they are not enough."""
    if request.gpu_count == 1 and not request.by_gpu:
        row = choose(node.placement, candidates)
        return None if row is None else allocate_on(node, node.devices[row], request)
    rows = choose_several(node, candidates, request)
    return None if rows is None else allocate_over(node, [node.devices[row] for row in rows], request)


def choose(placement: Placement, candidates: Iterable[Candidate]) -> int | None:
    """The row of the GPU that ``placement`` prefers, or ``None`` where there is no candidate."""
    best = min(candidates, key=POLICIES[placement].prefers, default=None)
    return None if best is None else best.row


def choose_several(
    node: NodeDevices, candidates: Iterable[Candidate], request: Request
) -> tuple[int, ...] | None:
    """The rows of the GPUs that the request gets, as many as it asks for; ``None`` where there are fewer candidates.

    Those whose farthest two are nearest; of equals those that the node's placement prefers, where memory is asked for, then what
    ``api.node.topology`` prefers. On nodes with more than ``MOST_GPUS`` the placement alone decides, of GPUs that are counted the index.
    """
    # Of GPUs that are counted none is fuller than another: placement has nothing to say of them.
    preference = in_order if request.by_gpu else POLICIES[node.placement].prefers
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
