"""The interconnect of a node's GPUs, and the best connected set of free GPUs. No I/O.

Nearness is an integer per pair: 0 is unknown, 1 to 6 are kinds of PCIe paths as NVML reports them, and values from ``LEAST_NVLINK``
on are NVLink bandwidths in GB/s per direction. So greater numbers mean more bandwidth: NVLink is above a switch, a switch above a
socket.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from gpushare.api.request.pluralize import counted

#: A symmetric matrix, in the order of the node's GPUs, with 0 on the diagonal; empty if unknown.
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
    """GPUs as ascending indices into the node's GPUs and as bits of ``mask``; ``least``: nearness of the farthest pair; ``total``: the sum."""

    rows: tuple[int, ...]
    mask: int
    least: int
    total: int


def matrix(count: int, near: Callable[[int, int], int]) -> TopologyLevels:
    """The matrix of ``count`` GPUs from pairwise ``near``; empty if nothing is known."""
    levels = tuple(tuple(near(a, b) if a != b else UNKNOWN for b in range(count)) for a in range(count))
    return levels if any(map(any, levels)) else ()


def triangle(near: TopologyLevels) -> TopologyLevels:
    """The serialized matrix: for each GPU the nearness to those before it."""
    return tuple(row[:index] for index, row in enumerate(near))


@lru_cache(maxsize=1024)  # equal nodes share one matrix
def untriangle(rows: TopologyLevels, order: tuple[int, ...]) -> TopologyLevels:
    """The matrix of a serialized triangle, with its GPUs reordered: ``order`` has for each GPU its index in ``rows``.

    Raises ``ValueError`` if ``rows`` is not a triangle of that size.
    """
    if not rows:
        return ()
    if [len(row) for row in rows] != list(range(len(order))):
        raise ValueError(
            f"nearness of {counted(len(order), 'GPU')} is listed in rows of 0 to {len(order) - 1} numbers"
        )
    if not all(UNKNOWN <= number < MOST_NEAR for row in rows for number in row):
        raise ValueError(f"nearness is a number from {UNKNOWN} to {MOST_NEAR - 1}")
    return matrix(len(order), lambda a, b: rows[max(order[a], order[b])][min(order[a], order[b])])


@lru_cache(maxsize=64)  # a few MB for 8 of 16 GPUs
def sets_of(near: TopologyLevels, gpus: int, count: int) -> tuple[GpuSet, ...]:
    """All sets of ``count`` of a node's ``gpus`` GPUs (at most ``MOST_GPUS``), best first; equal ones by lowest indices."""
    sets: list[GpuSet] = []

    def grow(rows: tuple[int, ...], mask: int, least: int, total: int) -> None:
        if len(rows) == count:
            sets.append(GpuSet(rows, mask, least, total))
            return
        start = rows[-1] + 1 if rows else 0
        for row in range(start, gpus - (count - len(rows)) + 1):
            between = [near[row][other] for other in rows] if near else [UNKNOWN] * len(rows)
            grow((*rows, row), mask | 1 << row, min(least, *between, MOST_NEAR), total + sum(between))

    grow((), 0, MOST_NEAR, 0)
    return tuple(
        sorted(sets, key=lambda gpu_set: (-gpu_set.least, -gpu_set.total))
    )  # stable: lowest indices first


def best_set(
    near: TopologyLevels,
    numa: Sequence[int],
    free: Collection[int],
    count: int,
    *,
    wish: Mapping[int, int] | None = None,
    must: Collection[int] = (),
) -> tuple[int, ...] | None:
    """The best ``count`` of the ``free`` GPUs (by index), including ``must``; ``None`` if impossible, or if there are too many sets.

    Criteria in order: the farthest pair is nearest; the best ranks of ``wish`` (a rank per GPU), if any; the greatest sum of nearness;
    the least loss of nearness for the remaining GPUs; the fewest NUMA nodes (``numa``, per GPU); the fewest NUMA nodes broken up that are
    completely free; the lowest indices.
    """
    if len(numa) > MOST_GPUS or not len(must) <= count <= len(free):
        return None
    allowed, required = _mask(free), _mask(must)
    tied: list[GpuSet] = []
    for candidate in sets_of(near, len(numa), count):
        if tied and (candidate.least < tied[0].least or (wish is None and candidate.total < tied[0].total)):
            break
        if not candidate.mask & ~allowed and not required & ~candidate.mask:
            tied.append(candidate)
    if not tied:
        return None
    # The loss of total nearness if a GPU is removed.
    loss = {row: sum(near[row][other] for other in free) if near else 0 for row in free}
    numa_masks = {
        node: _mask([row for row, numa_node in enumerate(numa) if numa_node == node]) for node in set(numa)
    }
    free_numa_nodes = {node for node, mask in numa_masks.items() if not mask & ~allowed}

    def order(candidate: GpuSet) -> tuple[list[int], int, int, int, int]:
        ranks = [] if wish is None else sorted(wish[row] for row in candidate.rows)
        nodes = {numa[row] for row in candidate.rows}
        broken_up = sum(numa_masks[node] & ~candidate.mask > 0 for node in nodes & free_numa_nodes)
        # Of sets with the same sum, prefer the one least connected to the remaining GPUs.
        return ranks, -candidate.total, sum(loss[row] for row in candidate.rows), len(nodes), broken_up

    return min(tied, key=order).rows


def _mask(rows: Collection[int]) -> int:
    return sum(1 << row for row in set(rows))
