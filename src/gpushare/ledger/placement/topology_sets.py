"""How near to each other the GPUs are that nodes could give to a request for several, and which they would, over many nodes at once.

Matrices are numbered as they come: a cluster has few kinds of node. What counts of a node is the number of its matrix and
which of its GPUs fit, and of such pairs there are few among thousands of nodes; each is looked up once and remembered.
"""

from functools import lru_cache
from math import comb
from typing import Final, NamedTuple

import numpy as np

from gpushare.api.node.topology import MOST_GPUS, TopologyLevels, sets_of
from gpushare.ledger.arrays import Ints, Mask

#: Kinds of node that are told apart; what is beyond counts as not known.
MOST_KINDS: Final = 4096
_MOST_KEPT: Final = 1 << 16
#: Sets that are compared for thousands of nodes; with more of them the placement alone says which GPUs are given: all of 12 GPUs
#: are fewer, and 2 of 16.
_MOST_SETS: Final = 1 << 10
#: Sets times nodes that are compared together.
_BLOCK: Final = 1 << 18
_NOT_KNOWN: Final = 0


class Nearness:
    """Matrices by number, and the best that sets of GPUs come to."""

    def __init__(self) -> None:
        self._numbers: dict[TopologyLevels, int] = {(): _NOT_KNOWN}
        self._matrices: list[TopologyLevels] = [()]
        self._least: dict[tuple[int, int, int], int] = {}

    def number_of(self, near: TopologyLevels) -> int:
        """What stands for ``near`` in the arrays; 0 where nothing is known, or the node has too many GPUs."""
        number = self._numbers.get(near)
        if number is not None:
            return number
        if len(near) > MOST_GPUS or len(self._matrices) >= MOST_KINDS:
            return _NOT_KNOWN
        self._matrices.append(near)
        self._numbers[near] = len(self._matrices) - 1
        return len(self._matrices) - 1

    def least(self, numbers: Ints, fits: Mask, count: int) -> Ints:
        """How near the farthest two of the best ``count`` GPUs are, for each node; 0 where it is not known.

        ``numbers`` are those of the nodes' matrices, ``fits`` (GPUs, nodes) which of their GPUs would do.
        """
        rows = min(fits.shape[0], MOST_GPUS)
        free = (fits[:rows] * (1 << np.arange(rows))[:, None]).sum(axis=0)
        keys, places = np.unique(numbers.astype(np.int64) << MOST_GPUS | free, return_inverse=True)
        found = [self._least_of(key >> MOST_GPUS, key & (1 << MOST_GPUS) - 1, count) for key in keys.tolist()]
        return np.array(found, np.int64)[places]

    def chosen(self, numbers: Ints, fits: Mask, wish: Ints, count: int) -> Ints:
        """(count, nodes): the rows that each node gives, as ``placement.choose_several`` has it.

        ``wish`` (GPUs, nodes) is least on those that the placement prefers. Which of sets with equal wishes is given is not worked
        out here, and a node with too few that fit has any.
        """
        rows: Ints = wish.argsort(axis=0, kind="stable")[:count]
        if count == 1 or not numbers.any():
            return rows
        enough = fits.sum(axis=0) >= count
        for number in np.unique(numbers[numbers != _NOT_KNOWN]).tolist():
            near = self._matrices[number]
            (there,) = ((numbers == number) & enough).nonzero()
            if not there.size or comb(len(near), count) > _MOST_SETS:
                continue
            sets = _sets(near, count)
            step = max(_BLOCK // sets.masks.size, 1)
            for start in range(0, there.size, step):
                some = there[start : start + step]
                rows[:, some] = sets.best(fits[: len(near), some], wish[: len(near), some])
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
    """All sets of so many GPUs of a node, the nearest first: as bits, how near the farthest two are, and as (GPUs, sets)."""

    masks: Ints
    least: Ints
    rows: Ints

    def best(self, fits: Mask, wish: Ints) -> Ints:
        """Those of which the farthest two are nearest and, of these, with the GPUs that are wished for most."""
        bits = (1 << np.arange(len(fits)))[:, None]
        masks = self.masks[:, None]
        tied = (masks & (~fits * bits).sum(axis=0)) == 0
        tied &= self.least[:, None] == self.least[tied.argmax(axis=0)]
        # Rank by rank: of two sets the one with more GPUs of the first rank in which they differ is the better.
        order = wish.argsort(axis=0, kind="stable")
        by_wish = np.take_along_axis(wish, order, axis=0)
        rank = np.zeros(wish.shape, np.int64)
        np.put_along_axis(rank, order[1:], (by_wish[1:] != by_wish[:-1]).cumsum(axis=0), axis=0)
        for number in range(len(fits)):
            if (tied.sum(axis=0) == 1).all():
                break
            found = np.bitwise_count(masks & ((rank == number) * bits).sum(axis=0)).astype(np.int8)
            found[~tied] = -1
            tied &= found == found.max(axis=0)
        best: Ints = self.rows[:, tied.argmax(axis=0)]
        return best


@lru_cache(maxsize=64)
def _sets(near: TopologyLevels, count: int) -> _Sets:
    sets = sets_of(near, len(near), count)
    return _Sets(
        np.array([one.mask for one in sets], np.int64),
        np.array([one.least for one in sets], np.int64),
        np.array([one.rows for one in sets], np.int64).T,
    )
