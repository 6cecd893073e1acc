"""The interconnect of a node's GPUs, and the best connected set of free ones. Pure.

Nearness is a whole number for each pair: 0 not known, 1 to 6 the kind of PCIe path between them as NVML tells it, and from
``LEAST_NVLINK`` on the GB/s that NVLink carries between them in each direction. So numbers compare as bandwidths do: NVLink
before a switch, a switch before a socket.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from gpushare.api.request.pluralize import counted

#: A symmetric matrix, in the order of the node's GPUs, with 0 on the diagonal; empty: nothing is known.
TopologyLevels = tuple[tuple[int, ...], ...]

UNKNOWN: Final = 0
#: PCIe path types (nvml.h, ``nvmlGpuTopologyLevel_t``), the farthest first.
OTHER_SOCKET, SAME_NUMA_NODE, SAME_HOST_BRIDGE, SEVERAL_SWITCHES, ONE_SWITCH, SAME_BOARD = range(1, 7)
#: GB/s; the slowest NVLink has 20.
LEAST_NVLINK: Final = 16
MOST_NEAR: Final = 1 << 16

#: Nodes with more GPUs are not searched exhaustively: 8 of 16 are 12,870 sets, 8 of 24 would be 735,471.
MOST_GPUS: Final = 16


class GpuSet(NamedTuple):
    """GPUs by their places among the node's, rising, and as bits of ``mask``; the farthest pair, the sum over all pairs."""

    rows: tuple[int, ...]
    mask: int
    least: int
    total: int


def matrix(count: int, near: Callable[[int, int], int]) -> TopologyLevels:
    """The matrix of ``count`` GPUs from pairwise ``near``; empty if nothing is known."""
    made = tuple(tuple(near(a, b) if a != b else UNKNOWN for b in range(count)) for a in range(count))
    return made if any(map(any, made)) else ()


def triangle(near: TopologyLevels) -> TopologyLevels:
    """The serialized matrix: for each GPU the nearness to those before it."""
    return tuple(row[:at] for at, row in enumerate(near))


@lru_cache(maxsize=1024)  # the nodes of a cluster are of few kinds, and share one matrix then
def untriangle(rows: TopologyLevels, order: tuple[int, ...]) -> TopologyLevels:
    """The matrix that ``rows`` stand for, of GPUs in another ``order`` (which of the written ones each is).

    Raises ``ValueError`` where they are no such triangle.
    """
    if not rows:
        return ()
    if [len(row) for row in rows] != list(range(len(order))):
        raise ValueError(
            f"nearness of {counted(len(order), 'GPU')} is told in rows of 0 to {len(order) - 1} numbers"
        )
    if not all(UNKNOWN <= number < MOST_NEAR for row in rows for number in row):
        raise ValueError(f"nearness is a number from {UNKNOWN} to {MOST_NEAR - 1}")
    return matrix(len(order), lambda a, b: rows[max(order[a], order[b])][min(order[a], order[b])])


@lru_cache(maxsize=64)  # of 8 of 16 GPUs a few MB
def sets_of(near: TopologyLevels, gpus: int, count: int) -> tuple[GpuSet, ...]:
    """All sets of ``count`` of a node's ``gpus`` (at most ``MOST_GPUS``), the nearest first, of equals the lowest places."""
    found: list[GpuSet] = []

    def grow(rows: tuple[int, ...], mask: int, least: int, total: int) -> None:
        if len(rows) == count:
            found.append(GpuSet(rows, mask, least, total))
            return
        start = rows[-1] + 1 if rows else 0
        for row in range(start, gpus - (count - len(rows)) + 1):
            between = [near[row][other] for other in rows] if near else [UNKNOWN] * len(rows)
            grow((*rows, row), mask | 1 << row, min(least, *between, MOST_NEAR), total + sum(between))

    grow((), 0, MOST_NEAR, 0)
    return tuple(sorted(found, key=lambda one: (-one.least, -one.total)))  # stable: the lowest places first


def best_set(
    near: TopologyLevels,
    numa: Sequence[int],
    free: Collection[int],
    count: int,
    *,
    wish: Mapping[int, int] | None = None,
    must: Collection[int] = (),
) -> tuple[int, ...] | None:
    """Which ``count`` of the places ``free`` are given, ``must`` among them; ``None`` where they cannot be, or are too many to compare.

    The set whose farthest pair is nearest; then, where there is a ``wish`` (a rank for each place), the one that is wished
    for most; then the nearest in sum, the one that leaves most to others, that on the fewest NUMA nodes (``numa``, by
    place), the one that begins the fewest NUMA nodes of which all GPUs are free, the lowest places.
    """
    if len(numa) > MOST_GPUS or not len(must) <= count <= len(free):
        return None
    allowed, wanted = _mask(free), _mask(must)
    tied: list[GpuSet] = []
    for one in sets_of(near, len(numa), count):
        if tied and (one.least < tied[0].least or (wish is None and one.total < tied[0].total)):
            break
        if not one.mask & ~allowed and not wanted & ~one.mask:
            tied.append(one)
    if not tied:
        return None
    # The loss of total nearness if a GPU is removed.
    loss = {row: sum(near[row][other] for other in free) if near else 0 for row in free}
    there = {node: _mask([row for row, its in enumerate(numa) if its == node]) for node in set(numa)}
    whole = {node for node, mask in there.items() if not mask & ~allowed}

    def order(one: GpuSet) -> tuple[list[int], int, int, int, int]:
        wished = [] if wish is None else sorted(wish[row] for row in one.rows)
        nodes = {numa[row] for row in one.rows}
        begun = sum(there[node] & ~one.mask > 0 for node in nodes & whole)
        # Of sets with the same sum, prefer the one least connected to the remaining GPUs.
        return wished, -one.total, sum(loss[row] for row in one.rows), len(nodes), begun

    return min(tied, key=order).rows


def _mask(rows: Collection[int]) -> int:
    return sum(1 << row for row in set(rows))
