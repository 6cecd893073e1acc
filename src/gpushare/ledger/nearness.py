"""How near to each other the GPUs are that nodes could give to a request for several, over many nodes at once.

Matrices are numbered as they come: a cluster has few kinds of node. What counts of a node is the number of its matrix and
which of its GPUs fit, and of such pairs there are few among thousands of nodes; each is looked up once and remembered.
"""

from functools import lru_cache
from typing import Final

import numpy as np

from gpushare.arrays import Ints, Mask
from gpushare.model.nearness import MOST_GPUS, sets_of, type_of_near

#: Kinds of node that are told apart; what is beyond counts as not known.
MOST_KINDS: Final = 4096
_MOST_KEPT: Final = 1 << 16
_NOT_KNOWN: Final = 0


class Nearness:
    """Matrices by number, and the best that sets of GPUs come to."""

    def __init__(self) -> None:
        self._numbers: dict[type_of_near, int] = {(): _NOT_KNOWN}
        self._matrices: list[type_of_near] = [()]
        self._least: dict[tuple[int, int, int], int] = {}

    def number_of(self, near: type_of_near) -> int:
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

    def _least_of(self, number: int, free: int, count: int) -> int:
        if number == _NOT_KNOWN or free.bit_count() < count:
            return 0
        least = self._least.get((number, free, count))
        if least is None:
            masks, values = _nearest_first(self._matrices[number], count)
            least = int(values[((masks & ~free) == 0).argmax()])
            if len(self._least) >= _MOST_KEPT:
                self._least.clear()
            self._least[number, free, count] = least
        return least


@lru_cache(maxsize=64)
def _nearest_first(near: type_of_near, count: int) -> tuple[Ints, Ints]:
    """All sets of ``count`` GPUs as bits, the nearest first, and how near the farthest two of each are."""
    sets = sets_of(near, len(near), count)
    return np.array([one.mask for one in sets], np.int64), np.array([one.least for one in sets], np.int64)
