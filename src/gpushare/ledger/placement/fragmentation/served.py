"""Looks up which part of the mix a GPU serves, for kinds that request one GPU.

Whether such a kind fits depends on thresholds only: units, percent of compute, whether the GPU is in use, and the node's
processors and the requests that it is open to. So the weights of all kinds that fit are summed once for each combination
of thresholds, and thousands of GPUs are looked up in one step, however many kinds there are.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from gpushare.ledger.arrays import Ints, Mask
from gpushare.ledger.placement.fragmentation.workload_mix import Kind

#: The requests that a node is open to, as bits.
OPEN_TO_MEMORY: Final = 1
OPEN_TO_CORE: Final = 2


class Served:
    """Weights of ``kinds``, each with one GPU. ``anything`` is the weight of a pod that can use any piece of any open node's GPUs."""

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
        # A GPU with more serves everything that one with less serves.
        for axis in range(1, table.ndim):
            table.cumsum(axis=axis, out=table)
        self._table = table.ravel()
        self._per_node = table[0, 0].size

    def nodes(self, cpu_milli: Ints, open_to: Ints) -> Ints:
        """The offset of each node in the table, to be added to ``gpus``."""
        offsets: Ints = open_to * (self._cpu.size + 1)
        if self._cpu.size:
            offsets += self._cpu.searchsorted(cpu_milli, "right")
        offsets *= self._per_node
        return offsets

    def gpus(self, fit_units: Ints, free_core: Ints, untouched: Mask) -> Ints:
        """The offset of each GPU within its node's part of the table."""
        offsets: Ints = self._units.searchsorted(fit_units, "right")
        if self._core.size:
            offsets += self._core.searchsorted(free_core, "right") * (self._units.size + 1)
        if self._some_whole:
            offsets += untouched * ((self._core.size + 1) * (self._units.size + 1))
        return offsets

    def weights(self, places: Ints) -> Ints:
        """The weight of all kinds that are served at these sums of ``nodes`` and ``gpus``."""
        weights: Ints = self._table.take(places)
        return weights

    def _cell(self, kind: Kind) -> tuple[int, int, int, int]:
        """The lowest thresholds at which the kind is served."""
        return (
            int(self._cpu.searchsorted(kind.cpu_milli, "right")),
            int(kind.whole),
            int(self._core.searchsorted(kind.core_percent, "right")),
            int(self._units.searchsorted(kind.units, "right")),
        )


def _steps(amounts: set[int]) -> Ints:
    return np.array(sorted(amounts), np.int64)
