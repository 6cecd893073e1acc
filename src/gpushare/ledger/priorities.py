"""What pods of each priority hold of each GPU, for all nodes at once: where evicting less important pods could help.

Examining every pod of 5,000 nodes takes a second, and usually few nodes can help, or none. The result here is an upper
bound: it includes every node that could help. These nodes are then planned pod by pod (``preemption``), those with the
least important victims first.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from gpushare.api.request.request import Request
from gpushare.ledger.arrays import Ints, Mask, Places

#: The priority class of terminating pods, which are gone soon, whatever their priority. Kubernetes' priorities start at -2**31.
LEAVING: Final = -(1 << 40)
#: Above every priority.
ANY: Final = 1 << 40
#: Priorities that are tracked separately. If more are in use every node is examined.
MOST_CLASSES: Final = 32
#: MiB, percent and number of pods.
_AMOUNTS: Final = 3


class Priorities:
    """Planes of (amount, GPU, node) by priority, created for a priority with its first pod."""

    def __init__(self, rows: int, capacity: int) -> None:
        self._rows = rows
        self._capacity = capacity
        self._planes: dict[int, Ints] = {}
        self._too_many = False

    def write(self, row: int, column: int, held: Mapping[int, Sequence[int]]) -> None:
        """Record what pods hold of one GPU by priority: MiB, percent, number. Priorities that are not in ``held`` stay."""
        for priority, amounts in held.items():
            plane = self._planes.get(priority)
            if plane is None:
                if len(self._planes) >= MOST_CLASSES:
                    self._too_many = True
                    continue
                plane = np.zeros((_AMOUNTS, self._rows, self._capacity), np.int64)
                self._planes[priority] = plane
            plane[0, row, column], plane[1, row, column], plane[2, row, column] = amounts

    def empty(self, column: int) -> None:
        """Clear the column."""
        for plane in self._planes.values():
            plane[:, :, column] = 0

    def resize(self, rows: int, capacity: int) -> None:
        """Grow to this size."""
        for priority, plane in self._planes.items():
            larger = np.zeros((_AMOUNTS, rows, capacity), np.int64)
            larger[:, : self._rows, : self._capacity] = plane
            self._planes[priority] = larger
        self._rows, self._capacity = rows, capacity

    def below(self, priority: int | Ints, at: Places) -> Iterator[Ints] | None:
        """What the pods of each priority below ``priority`` hold of ``at``, the lowest first; ``None``: unknown.

        ``priority`` may differ by column.
        """
        if self._too_many:
            return None
        highest = int(np.max(priority, initial=LEAVING))
        return (self._below(level, priority, at) for level in sorted(self._planes) if level < highest)

    def _below(self, level: int, priority: int | Ints, at: Places) -> Ints:
        held = self._planes[level].take(at, axis=2)
        return held if isinstance(priority, int) else held * (priority > level)


class Lacking:
    """What GPUs have free as pods are removed, the least important first; planes are (GPUs, nodes).

    ``total_mib`` is 0 for GPUs that can never be allocated; ``max_pods`` 0 means no cap.
    """

    def __init__(
        self, *, total_mib: Ints, taken_mib: Ints, units: Ints, used_core: Ints, pods: Ints, max_pods: Ints
    ) -> None:
        self._usable = total_mib > 0
        self._total_mib = total_mib
        self._free_mib = total_mib - taken_mib
        self._units = units
        self._used_core = used_core
        self._pods = pods
        self._max_pods = np.where(max_pods > 0, max_pods, np.iinfo(np.int32).max)

    def take_away(self, held: Ints) -> None:
        """Remove the pods that hold this."""
        self._free_mib = self._free_mib + held[0]
        self._used_core = self._used_core - held[1]
        self._pods = self._pods - held[2]

    def fits(self, request: Request) -> Mask:
        """The nodes on which enough GPUs have room for ``request`` now, as far as is known here."""
        # The condition of ``GpuBook.refresh``, without its division.
        gpus = (self._free_mib + 1) * self._units > request.memory_units * self._total_mib
        gpus &= self._usable & (self._free_mib >= 0)
        gpus &= self._pods < (1 if request.whole_device else self._max_pods)
        # Pods with compute and pods without never share a node, except where GPUs are counted.
        if request.by_gpu:
            others = np.zeros_like(gpus)
        elif request.wants_core:
            gpus &= self._used_core + request.core_percent <= 100
            others = (self._pods > 0) & (self._used_core == 0)
        else:
            others = self._used_core > 0
        fitting: Mask = (gpus.sum(axis=0) >= request.gpu_count) & ~others.any(axis=0)
        return fitting


def levels(lacking: Lacking, classes: Iterator[Ints], request: Request) -> Iterator[Places]:
    """Nodes where ``request`` could fit without pods of ``classes``: first those where no eviction is needed, then class by class."""
    seen = lacking.fits(request)
    yield seen.nonzero()[0]
    for held in classes:
        lacking.take_away(held)
        fits = lacking.fits(request)
        yield (fits & ~seen).nonzero()[0]
        seen |= fits
