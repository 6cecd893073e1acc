"""Which GPUs nodes would allocate to a request for several, and how near these are to each other, over many nodes at once.

Topology matrices are numbered: a cluster has few kinds of node. A result depends on the number of the matrix and on which
GPUs fit. There are few such pairs among thousands of nodes; each is computed once and cached.
"""

from functools import lru_cache
from math import comb
from typing import Final, NamedTuple

import numpy as np

from gpushare.api.node.topology import MOST_GPUS, TopologyLevels, sets_of
from gpushare.ledger.arrays import Ints, Mask

#: Kinds of node that are distinguished; further ones count as unknown.
MOST_KINDS: Final = 4096
_MOST_KEPT: Final = 1 << 16
#: Sets that are compared for thousands of nodes. With more of them only the placement policy decides. All sets of 12 GPUs
#: are fewer, and so are those of 2 of 16.
_MOST_SETS: Final = 1 << 10
#: Sets times nodes that are compared together.
_BLOCK: Final = 1 << 18
_NOT_KNOWN: Final = 0


class Nearness:
    """Topology matrices by number, and the best sets of GPUs by matrix."""

    def __init__(self) -> None:
        self._numbers: dict[TopologyLevels, int] = {(): _NOT_KNOWN}
        self._matrices: list[TopologyLevels] = [()]
        self._least: dict[tuple[int, int, int], int] = {}

    def number_of(self, near: TopologyLevels) -> int:
        """The number of ``near`` in arrays; 0 if nothing is known, or the node has too many GPUs."""
        number = self._numbers.get(near)
        if number is not None:
            return number
        if len(near) > MOST_GPUS or len(self._matrices) >= MOST_KINDS:
            return _NOT_KNOWN
        self._matrices.append(near)
        self._numbers[near] = len(self._matrices) - 1
        return len(self._matrices) - 1

    def least(self, numbers: Ints, fits: Mask, count: int) -> Ints:
        """The level between the farthest two of the best ``count`` GPUs, for each node; 0 if unknown.

        ``numbers`` are those of the nodes' matrices; ``fits`` (GPUs, nodes) says which of their GPUs may be used.
        """
        rows = min(fits.shape[0], MOST_GPUS)
        free = (fits[:rows] * (1 << np.arange(rows))[:, None]).sum(axis=0)
        keys, places = np.unique(numbers.astype(np.int64) << MOST_GPUS | free, return_inverse=True)
        least = [self._least_of(key >> MOST_GPUS, key & (1 << MOST_GPUS) - 1, count) for key in keys.tolist()]
        return np.array(least, np.int64)[places]

    def chosen(self, numbers: Ints, fits: Mask, wish: Ints, count: int) -> Ints:
        """(count, nodes): the rows that each node allocates, as in ``policies.choose_several``.

        ``wish`` (GPUs, nodes) is least on GPUs that the placement policy prefers. The order of sets with equal wishes is not
        determined here, and the rows of a node with too few fitting GPUs are arbitrary.
        """
        rows: Ints = wish.argsort(axis=0, kind="stable")[:count]
        if count == 1 or not numbers.any():
            return rows
        enough = fits.sum(axis=0) >= count
        for number in np.unique(numbers[numbers != _NOT_KNOWN]).tolist():
            near = self._matrices[number]
            (positions,) = ((numbers == number) & enough).nonzero()
            if not positions.size or comb(len(near), count) > _MOST_SETS:
                continue
            sets = _sets(near, count)
            step = max(_BLOCK // sets.masks.size, 1)
            for start in range(0, positions.size, step):
                block = positions[start : start + step]
                rows[:, block] = sets.best(fits[: len(near), block], wish[: len(near), block])
        return rows

    def _least_of(self, number: int, free: int, count: int) -> int:
        if number == _NOT_KNOWN or free.bit_count() < count:
            return 0
        least = self._least.get((number, free, count))
        if least is None:
            sets = _sets(self._matrices[number], count)
            least = int(sets.least[((sets.masks & ~free) == 0).argmax()])
            if len(self._least) >= _MOST_KEPT:
                self._least.clear()
            self._least[number, free, count] = least
        return least


class _Sets(NamedTuple):
    """All sets of a number of GPUs of a node, the nearest first: as bits, with the level of the farthest two, and as (GPUs, sets)."""

    masks: Ints
    least: Ints
    rows: Ints

    def best(self, fits: Mask, wish: Ints) -> Ints:
        """The sets whose farthest two GPUs are nearest and, of these, with the most preferred GPUs."""
        bits = (1 << np.arange(len(fits)))[:, None]
        masks = self.masks[:, None]
        tied = (masks & (~fits * bits).sum(axis=0)) == 0
        tied &= self.least[:, None] == self.least[tied.argmax(axis=0)]
        # Rank by rank: of two sets the one with more GPUs of the first rank in which they differ is better.
        order = wish.argsort(axis=0, kind="stable")
        by_wish = np.take_along_axis(wish, order, axis=0)
        rank = np.zeros(wish.shape, np.int64)
        np.put_along_axis(rank, order[1:], (by_wish[1:] != by_wish[:-1]).cumsum(axis=0), axis=0)
        for number in range(len(fits)):
            if (tied.sum(axis=0) == 1).all():
                break
            counts = np.bitwise_count(masks & ((rank == number) * bits).sum(axis=0)).astype(np.int8)
            counts[~tied] = -1
            tied &= counts == counts.max(axis=0)
        best: Ints = self.rows[:, tied.argmax(axis=0)]
        return best


@lru_cache(maxsize=64)
def _sets(near: TopologyLevels, count: int) -> _Sets:
    sets = sets_of(near, len(near), count)
    return _Sets(
        np.array([gpu_set.mask for gpu_set in sets], np.int64),
        np.array([gpu_set.least for gpu_set in sets], np.int64),
        np.array([gpu_set.rows for gpu_set in sets], np.int64).T,
    )
