"""Which of the fitting GPUs a pod is put on: one loop, and a preference for each policy."""

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
    """A GPU that can take the request: its row (rows are ordered by GPU index), MiB free before and after, number of pods.

    ``grown`` is how much fragments grow there, computed if the node's placement policy needs it.
    """

    row: int
    free_mib: int
    left_mib: int
    pods: int
    grown: int = 0


PreferenceFn = Callable[[Candidate], tuple[int, ...]]
ChoiceFn = Callable[[Ints, Ints], Ints]


def tightest(candidate: Candidate) -> tuple[int, ...]:
    """The GPU with the least left over, then the lower index: large free pieces stay whole for large pods."""
    return candidate.left_mib, candidate.row


def roomiest(candidate: Candidate) -> tuple[int, ...]:
    """The GPU with the most left over, then the fewest pods, then the lower index: pods disturb each other least."""
    return -candidate.left_mib, candidate.pods, candidate.row


def least_fragmenting(candidate: Candidate) -> tuple[int, ...]:
    """The GPU that leaves most to the expected requests, then the tightest."""
    return candidate.grown, *tightest(candidate)


def in_order(candidate: Candidate) -> tuple[int, ...]:
    """The lower index."""
    return (candidate.row,)


#: Upper bounds: MiB left over on a GPU, and the number of pods that is distinguished.
MOST_LEFT: Final = 1 << 30
PODS: Final = 1 << 16


def _roomiest_of_many(left_mib: Ints, pods: Ints) -> Ints:
    rank: Ints = (MOST_LEFT - left_mib) * PODS + np.minimum(pods, PODS - 1)
    return rank


class Policy(NamedTuple):
    """How GPUs of a node, and nodes, are chosen.

    ``prefers`` returns the sort key of a GPU, least is best, ending with its row; ``description`` is the same for people.
    ``wish`` is the same for thousands of GPUs at once, without the row, from what would be left over on each (MiB) and their
    pods. ``worth`` is for nodes, from what would be left over on the GPUs that each would allocate and the number of its pods.
    Both return whole numbers from 0 to ``MOST_LEFT * PODS``. ``None``: by what is left over, the least first.
    """

    prefers: PreferenceFn
    description: str
    wish: ChoiceFn | None = None
    worth: ChoiceFn | None = None


#: In the order of their numbers in ``columns``; the first is also that of columns without a node.
POLICIES: Final[dict[Placement, Policy]] = {
    Placement.BINPACK: Policy(tightest, "the GPU on which the least is left over, then the lower index"),
    Placement.SPREAD: Policy(
        roomiest,
        "the GPU on which the most is left over, then the fewest pods, then the lower index",
        _roomiest_of_many,
        _roomiest_of_many,
    ),
    # It also needs to know how fragments grow, which ``growth`` computes.
    Placement.FRAGMENTATION: Policy(
        least_fragmenting,
        "the GPU that leaves most to the requests that are to be expected, then the one on which the least is left over",
    ),
}


def number_of(placement: Placement) -> int:
    """The number of the policy in arrays."""
    return list(POLICIES).index(placement)


def with_wishes(numbers: Ints) -> Iterator[tuple[Mask, ChoiceFn]]:
    """Policy by policy, those of ``numbers`` whose policy does not choose the tightest GPU, and its preference."""
    for number, policy in enumerate(POLICIES.values()):
        if policy.wish is not None and (of_policy := numbers == number).any():
            yield of_policy, policy.wish


def chosen(node: NodeDevices, candidates: list[Candidate], request: Request) -> Allocation | None:
    """The allocation of ``request`` on these candidates; ``None`` if they are not enough."""
    if request.gpu_count == 1 and not request.by_gpu:
        row = choose(placement_for(request, node), candidates)
        return None if row is None else allocate_on(node, node.devices[row], request)
    rows = choose_several(node, candidates, request)
    return None if rows is None else allocate_over(node, [node.devices[row] for row in rows], request)


def placement_for(request: Request | None, node: NodeDevices) -> Placement:
    """The policy that chooses GPUs of ``node`` for ``request`` (``None``: unknown): the request's, else the node's."""
    chosen_by_pod = None if request is None else request.gpu_placement
    return chosen_by_pod or node.placement


def choose(placement: Placement, candidates: Iterable[Candidate]) -> int | None:
    """The row of the GPU that ``placement`` prefers; ``None`` without candidates."""
    best = min(candidates, key=POLICIES[placement].prefers, default=None)
    return None if best is None else best.row


def choose_several(
    node: NodeDevices, candidates: Iterable[Candidate], request: Request
) -> tuple[int, ...] | None:
    """The rows of as many GPUs as are requested; ``None`` if there are fewer candidates.

    Chooses the GPUs whose farthest two are nearest to each other; of equal sets the one that the placement policy prefers,
    if memory is requested, then what ``api.node.topology`` prefers. On nodes with more than ``MOST_GPUS`` only the policy decides,
    or the index where GPUs are counted.
    """
    # Where GPUs are counted all candidates are unused, so the policy cannot rank them.
    preference = in_order if request.by_gpu else POLICIES[placement_for(request, node)].prefers
    ordered = sorted(candidates, key=preference)
    if len(ordered) < request.gpu_count:
        return None
    numa = tuple(device.numa_node for device in node.devices)
    if len(node.devices) > MOST_GPUS or (not node.near and len(set(numa)) == 1):
        return tuple(candidate.row for candidate in ordered[: request.gpu_count])
    wish: dict[int, int] | None = None
    if not request.by_gpu:
        # All preferences end with the row, which must come last here.
        equals = groupby(ordered, key=lambda candidate: preference(candidate)[:-1])
        wish = {candidate.row: rank for rank, (_, group) in enumerate(equals) for candidate in group}
    return best_set(node.near, numa, [candidate.row for candidate in ordered], request.gpu_count, wish=wish)
