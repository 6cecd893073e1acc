"""How much of the free GPU memory the requests that are to be expected could not use, and what a request adds to that.

After "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent" (USENIX ATC 2023): for
a node and a kind of request, what is free on GPUs that cannot take the kind's share is a fragment; all that is free is one
where the node cannot take the kind at all. Averaged over the mix of kinds, a request goes where it adds least.

One thing is counted more finely than there: a node whose processors serve one pod of a kind, but not as many as its GPUs
would take, counts as usable only for what its processors serve. So do fragments grow before the last processor is gone.
A kind is rarely alone on a node, and those beside it mostly want fewer processors: a quarter more is taken to be served.

Figures are MiB times the mix's weight: whole numbers below 2**53, exact also where they pass through floats.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import numpy as np

from gpushare.arrays import Floats, Ints, Mask
from gpushare.ledger.fitting import FAR
from gpushare.ledger.mix import Kind

#: Kinds that count, the most frequent: bounds the work.
MOST_WEIGHED: Final = 64
#: Rarer kinds are left out once the others make up so many percent of the arrivals.
WEIGHED_PERCENT: Final = 95
#: What processors serve of a kind, in parts of what they would if it had the node for itself.
SERVED: Final = 1.25
#: Which requests a node is open to, as bits.
OPEN_TO_MEMORY: Final = 1
OPEN_TO_CORE: Final = 2


class State(NamedTuple):
    """Nodes as fragmentation sees them: planes are (GPUs, nodes), lines are (nodes,).

    ``fit_units`` is the largest request that a GPU takes, below 0 where it takes none; ``free_core`` is in percent, below
    0 where none is given; ``unit_mib`` is the size of the node's memory unit, ``open_to`` are bits.
    """

    free_mib: Ints
    fit_units: Ints
    free_core: Ints
    cpu_milli: Ints
    open_to: Ints
    unit_mib: Ints


class Weighed:
    """A mix of kinds, as arrays: a row per kind, or per share (units, compute) that kinds want of each of their GPUs."""

    def __init__(self, weights: Mapping[Kind, int]) -> None:
        kinds = _most_frequent(weights)
        shares = sorted({(kind.units, kind.core_percent) for kind in kinds})
        self.weight = sum(kinds.values())
        self._share_units = _rows(units for units, _ in shares)
        self._share_core = _rows(core_percent for _, core_percent in shares)
        self._weights = _rows(kinds.values())
        self._share = np.array([shares.index((kind.units, kind.core_percent)) for kind in kinds], np.intp)
        self._gpus = _rows(kind.gpus for kind in kinds)
        self._cpu = _rows(kind.cpu_milli for kind in kinds)
        self._units = _rows(kind.gpus * kind.units for kind in kinds)
        self._needs = _rows(OPEN_TO_CORE if kind.core_percent else OPEN_TO_MEMORY for kind in kinds)
        self._asking = np.flatnonzero(self._cpu)
        self._several = np.flatnonzero(self._gpus > 1)

    def fragments(self, state: State) -> Ints:
        """For each node the sum over the mix of the free MiB that the kind could not use, times its weight."""
        fits = self._fits(state.fit_units, state.free_core)
        usable = self._usable((state.free_mib * fits).sum(axis=1), fits.sum(axis=1), self._most(state))
        found: Ints = self.weight * state.free_mib.sum(axis=0) - usable
        return found

    def grown_by_one(self, before: State, after: State, gpus: Mask) -> Ints:
        """(GPUs, nodes): by how much ``fragments`` grow where that one of ``gpus``, and its node's lines, become as in ``after``.

        ``FAR`` on all other GPUs.
        """
        # GPUs side by side are mostly alike: what was worked out for one holds for the next.
        alike = gpus[1:] & gpus[:-1]
        for plane in (*before[:3], *after[:3]):
            alike &= plane[1:] == plane[:-1]
        first = gpus.copy()
        first[1:] &= ~alike
        rows, at = first.nonzero()
        free_after = after.free_mib[rows, at]
        fits = self._fits(before.fit_units, before.free_core)
        fits_after = self._fits(after.fit_units[rows, at], after.free_core[rows, at])
        free = before.free_mib * fits
        free_sum, fitting = free.sum(axis=1), fits.sum(axis=1)
        usable = self._usable(
            free_sum[:, at] - free[:, rows, at] + free_after * fits_after,
            fitting[:, at] - fits[:, rows, at] + fits_after,
            self._most(after)[:, at],
        )
        usable_before = self._usable(free_sum, fitting, self._most(before))
        grown: Ints = np.full(gpus.shape, FAR)
        grown[rows, at] = self.weight * (free_after - before.free_mib[rows, at]) - usable + usable_before[at]
        for row in range(1, len(grown)):
            np.copyto(grown[row], grown[row - 1], where=alike[row - 1])
        return grown

    def _fits(self, fit_units: Ints, free_core: Ints) -> Mask:
        """Which GPUs take each share: a row more in front."""
        shape = (-1,) + (1,) * fit_units.ndim
        fits: Mask = fit_units >= self._share_units.reshape(shape)
        if self._share_core.any():
            core_percent = self._share_core.reshape(shape)
            fits &= (core_percent == 0) | (free_core >= core_percent)
        return fits

    def _most(self, lines: State) -> Floats:
        """For each kind and node the MiB that the node's lines let it use, however much is free."""
        most = np.where(self._needs & lines.open_to > 0, np.inf, 0.0)
        asking = self._asking
        if asking.size:
            cpu = self._cpu[asking]
            served = np.floor(SERVED * lines.cpu_milli * (self._units[asking] * lines.unit_mib) / cpu)
            served[lines.cpu_milli < cpu] = 0.0
            most[asking] = np.minimum(most[asking], served)
        return most

    def _usable(self, free: Ints, gpus: Ints, most: Floats) -> Ints:
        """``free`` and ``gpus`` say for each share how many MiB are free on GPUs that take it, and how many such there are."""
        could = np.minimum(free.astype(np.float64)[self._share], most)
        several = self._several
        if several.size:
            could[several] *= gpus[self._share[several]] >= self._gpus[several]
        # No product of matrices: BLAS would start threads for it.
        could *= self._weights
        found: Ints = could.sum(axis=0).astype(np.int64)
        return found


def _most_frequent(weights: Mapping[Kind, int]) -> dict[Kind, int]:
    """Those that want a GPU and make up most of the mix; of kinds as frequent the smaller first."""
    wanted = sorted(((-weight, kind) for kind, weight in weights.items() if kind.gpus))
    total, found = -sum(weight for weight, _ in wanted), 0
    kinds: dict[Kind, int] = {}
    for weight, kind in wanted[:MOST_WEIGHED]:
        kinds[kind] = -weight
        found -= weight
        if found * 100 >= total * WEIGHED_PERCENT:
            break
    return kinds


def _rows(amounts: Iterable[int]) -> Ints:
    return np.array(list(amounts), np.int64).reshape(-1, 1)
