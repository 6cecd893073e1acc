"""What part of the mix a GPU serves, looked up: for kinds that want one GPU.

Such a kind fits a GPU or not by thresholds alone: units, percent of compute, whether anybody uses it, and on its node the
processors and to which requests it is open. So the weights of all kinds that fit are added up once for each combination that
makes a difference, and thousands of GPUs are looked up in one go, however many kinds there are.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from gpushare.ledger.arrays import Ints, Mask
from gpushare.ledger.placement.fragmentation.workload_mix import Kind

#: Which requests a node is open to, as bits.
OPEN_TO_MEMORY: Final = 1
OPEN_TO_CORE: Final = 2


class Served:
    """Weights of ``kinds``, each of one GPU; ``anything`` is that of a pod that takes any piece of a GPU of any open node."""

    def __init__(self, kinds: Mapping[Kind, int], anything: int) -> None:
        self._units = _steps({1, *(kind.units for kind in kinds)})
        self._core = _steps({kind.core_percent for kind in kinds} - {0})
        self._cpu = _steps({kind.cpu_milli for kind in kinds} - {0})
        self._some_whole = any(kind.whole for kind in kinds)
        counts = (self._cpu.size + 1, 1 + self._some_whole, self._core.size + 1, self._units.size + 1)
        memory, core = np.zeros(counts, np.int64), np.zeros(counts, np.int64)
        for kind, weight in kinds.items():
            by_need = core if kind.core_percent else memory
            by_need[self._cell(kind)] += weight
        pieces = np.zeros(counts, np.int64)
        pieces[self._cell(Kind(1, 1))] = anything
        by_open = [np.zeros(counts, np.int64)] * 4
        by_open[OPEN_TO_MEMORY] = memory + pieces
        by_open[OPEN_TO_CORE] = core + pieces
        by_open[OPEN_TO_MEMORY | OPEN_TO_CORE] = memory + core + pieces
        table = np.stack(by_open)
        # Who has more serves all that is served with less.
        for axis in range(1, table.ndim):
            table.cumsum(axis=axis, out=table)
        self._table = table.ravel()
        self._per_node = table[0, 0].size

    def nodes(self, cpu_milli: Ints, open_to: Ints) -> Ints:
        """Where the table begins for each node, to be added to ``gpus``."""
        found: Ints = open_to * (self._cpu.size + 1)
        if self._cpu.size:
            found += self._cpu.searchsorted(cpu_milli, "right")
        found *= self._per_node
        return found

    def gpus(self, fit_units: Ints, free_core: Ints, untouched: Mask) -> Ints:
        """How far from there it has what is for each GPU."""
        found: Ints = self._units.searchsorted(fit_units, "right")
        if self._core.size:
            found += self._core.searchsorted(free_core, "right") * (self._units.size + 1)
        if self._some_whole:
            found += untouched * ((self._core.size + 1) * (self._units.size + 1))
        return found

    def weights(self, places: Ints) -> Ints:
        """The weight of all that is served at these sums of ``nodes`` and ``gpus``."""
        found: Ints = self._table.take(places)
        return found

    def _cell(self, kind: Kind) -> tuple[int, int, int, int]:
        """The least of everything with which the kind is served."""
        return (
            int(self._cpu.searchsorted(kind.cpu_milli, "right")),
            int(kind.whole),
            int(self._core.searchsorted(kind.core_percent, "right")),
            int(self._units.searchsorted(kind.units, "right")),
        )


def _steps(amounts: set[int]) -> Ints:
    return np.array(sorted(amounts), np.int64)
