"""How much of the free GPU memory the expected requests could not use, and by how much a request increases that.

After "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent" (USENIX ATC 2023): for
a node and a kind of request, the free memory of GPUs that cannot take the kind's share is a fragment; if the node cannot take
the kind at all, all of its free memory is. Averaged over the mix of kinds, a request goes where it adds least.

Processors count in two ways. As in the paper, a node with too few processors for one pod of a kind cannot take it. In
addition, the mix as a whole should fit what a node has: the average pod, which can use any piece of a GPU, uses no more memory
than the processors allow. So a pod that needs few processors goes where they are scarce, one that needs many goes where they
are plentiful, long before the last one is allocated. Pods without a GPU use processors too, which is not visible here, so the
average pod counts once more with twice the processors.

Figures are MiB times the mix's weight: whole numbers far below 2**63.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from gpushare.ledger.arrays import Ints, Mask
from gpushare.ledger.fit.single_gpu import FAR
from gpushare.ledger.node_book import UNKNOWN_CPU_MILLI
from gpushare.ledger.placement.fragmentation.served import OPEN_TO_CORE, OPEN_TO_MEMORY, Served
from gpushare.ledger.placement.fragmentation.workload_mix import Kind

#: The most frequent kinds, which are the only ones that count: bounds the work.
MOST_WEIGHED: Final = 64
#: Rarer kinds are ignored once the others make up this percentage of the arrivals.
WEIGHED_PERCENT: Final = 95
#: Processors of the average pod, as multiples of what the mix requests: once, and with as many again for pods without a GPU.
LOADS: Final = (1, 2)
#: Bits of the average pod's units: multiplied by a node's processors and the MiB of a unit they stay below 2**63.
_UNITS_BITS: Final = 20
#: The average pod except for its processors: it can use any piece of a GPU.
_ANY: Final = Kind(1, 1)


class State(NamedTuple):
    """What fragmentation depends on: planes are (GPUs, nodes), lines are (nodes,).

    ``fit_units`` is the largest request that a GPU takes, negative for none; ``free_core`` is in percent, negative if the node
    does not share compute; ``untouched`` GPUs are unused; ``unit_mib`` is the node's memory unit; ``open_to`` are bits.
    """

    free_mib: Ints
    fit_units: Ints
    free_core: Ints
    untouched: Mask
    cpu_milli: Ints
    open_to: Ints
    unit_mib: Ints


class Weighed:
    """A mix of kinds. Those that request one GPU are looked up (``served``), those that request several are computed by arrays.

    The arrays have a row per kind, or per share (units, compute, whole) that kinds request of each of their GPUs. Each of
    ``loads`` adds the average pod with so many times its processors and the weight of all kinds together.
    """

    def __init__(self, weights: Mapping[Kind, int], loads: Sequence[int] = LOADS) -> None:
        kinds = _most_frequent(weights)
        self._together = sum(kinds.values())
        self.weight = self._together * (1 + len(loads))
        self._units, cpu_milli = _average(kinds)
        # If no kind requests processors the average pods can use any piece, and are looked up too.
        self._loads = [load * cpu_milli for load in loads if cpu_milli]
        self._served = Served(
            {kind: weight for kind, weight in kinds.items() if kind.gpus == 1},
            self._together * (len(loads) - len(self._loads)),
        )
        several = {kind: weight for kind, weight in kinds.items() if kind.gpus > 1}
        shares = sorted({(kind.units, kind.core_percent, kind.whole) for kind in several})
        self._share_units = _rows(units for units, _, _ in shares)
        self._share_core = _rows(core_percent for _, core_percent, _ in shares)
        self._share_whole = _rows(whole for _, _, whole in shares)
        self._some_whole = bool(self._share_whole.any())
        self._weights = _rows(several.values())
        self._share = np.array(
            [shares.index((kind.units, kind.core_percent, kind.whole)) for kind in several], np.intp
        )
        self._gpus = _rows(kind.gpus for kind in several)
        self._cpu = _rows(kind.cpu_milli for kind in several)
        self._needs = _rows(OPEN_TO_CORE if kind.core_percent else OPEN_TO_MEMORY for kind in several)

    def fragments(self, state: State) -> Ints:
        """For each node the sum over the mix of the free MiB that the kind could not use, times its weight."""
        served = self._served
        places = served.gpus(state.fit_units, state.free_core, state.untouched)
        places += served.nodes(state.cpu_milli, state.open_to)
        fragments: Ints = ((self.weight - served.weights(places)) * state.free_mib).sum(axis=0)
        if self._loads:
            pieces = state.free_mib * (state.fit_units >= _ANY.units)
            fragments -= self._usable_on_average(pieces.sum(axis=0), state)
        if self._share.size:
            fits = self._fits(state.fit_units, state.free_core, state.untouched)
            free = (state.free_mib * fits).sum(axis=1)
            fragments -= self._usable_by_several(free, fits.sum(axis=1), self._able(state))
        return fragments

    def grown_by_one(self, before: State, after: State, gpus: Mask) -> Ints:
        """(GPUs, nodes): how much ``fragments`` grow if one of ``gpus``, and its node's lines, become as in ``after``.

        ``FAR`` on all other GPUs.
        """
        served = self._served
        nodes = served.nodes(before.cpu_milli, before.open_to)
        nodes_after = served.nodes(after.cpu_milli, after.open_to)
        places = served.gpus(before.fit_units, before.free_core, before.untouched)
        usable = before.free_mib * served.weights(nodes + places)
        grown: Ints = self.weight * (after.free_mib - before.free_mib) + usable.sum(axis=0)
        if not np.array_equal(nodes, nodes_after):
            usable = before.free_mib * served.weights(nodes_after + places)
        grown += usable - usable.sum(axis=0)
        places = served.gpus(after.fit_units, after.free_core, after.untouched)
        grown -= after.free_mib * served.weights(nodes_after + places)
        if self._loads:
            pieces = before.free_mib * (before.fit_units >= _ANY.units)
            together = pieces.sum(axis=0)
            pieces_after = together - pieces + after.free_mib * (after.fit_units >= _ANY.units)
            grown += self._usable_on_average(together, before) - self._usable_on_average(pieces_after, after)
        if self._share.size:
            grown -= self._more_by_several(before, after, gpus)
        return np.where(gpus, grown, FAR)

    def _more_by_several(self, before: State, after: State, gpus: Mask) -> Ints:
        """How much more the kinds with several GPUs can use of each node; meaningless except for ``gpus``."""
        # Neighbouring GPUs are mostly identical: the result for one is reused for the next.
        alike = gpus[1:] & gpus[:-1]
        planes = 4 if self._some_whole else 3
        for plane in (*before[:planes], *after[:planes]):
            alike &= plane[1:] == plane[:-1]
        first = gpus.copy()
        first[1:] &= ~alike
        rows, at = first.nonzero()
        fits = self._fits(before.fit_units, before.free_core, before.untouched)
        fits_after = self._fits(
            after.fit_units[rows, at], after.free_core[rows, at], after.untouched[rows, at]
        )
        free = before.free_mib * fits
        free_sum, fitting = free.sum(axis=1), fits.sum(axis=1)
        usable = self._usable_by_several(
            free_sum[:, at] - free[:, rows, at] + after.free_mib[rows, at] * fits_after,
            fitting[:, at] - fits[:, rows, at] + fits_after,
            self._able(after)[:, at],
        )
        usable_before = self._usable_by_several(free_sum, fitting, self._able(before))
        more: Ints = np.zeros(gpus.shape, np.int64)
        more[rows, at] = usable - usable_before[at]
        for row in range(1, len(more)):
            np.copyto(more[row], more[row - 1], where=alike[row - 1])
        return more

    def _fits(self, fit_units: Ints, free_core: Ints, untouched: Mask) -> Mask:
        """Which GPUs take each share; adds a dimension in front."""
        shape = (-1,) + (1,) * fit_units.ndim
        fits: Mask = fit_units >= self._share_units.reshape(shape)
        if self._share_core.any():
            core_percent = self._share_core.reshape(shape)
            fits &= (core_percent == 0) | (free_core >= core_percent)
        if self._some_whole:
            fits &= (self._share_whole.reshape(shape) == 0) | untouched
        return fits

    def _able(self, lines: State) -> Mask:
        """For each row and node whether the node's lines suffice, however much is free."""
        able: Mask = (self._needs & lines.open_to > 0) & (lines.cpu_milli >= self._cpu)
        return able

    def _usable_by_several(self, free: Ints, gpus: Ints, able: Mask) -> Ints:
        """``free``: MiB on GPUs that take each share; ``gpus``: the number of such GPUs."""
        could = (gpus[self._share] >= self._gpus) & able
        # No matrix product: BLAS would start threads for it.
        usable: Ints = (free[self._share] * self._weights * could).sum(axis=0)
        return usable

    def _usable_on_average(self, free: Ints, lines: State) -> Ints:
        """How much the average pods can use of what is ``free`` in pieces."""
        unlimited = lines.cpu_milli >= UNKNOWN_CPU_MILLI
        units_mib = lines.cpu_milli * (self._units * lines.unit_mib)
        usable: Ints = np.zeros_like(free)
        for load in self._loads:
            usable += np.minimum(free, np.where(unlimited, FAR, units_mib // load))
        usable *= np.where(lines.open_to > 0, self._together, 0)
        return usable


def _most_frequent(weights: Mapping[Kind, int]) -> dict[Kind, int]:
    """The kinds that request a GPU and make up most of the mix; of equally frequent kinds the smaller first."""
    wanted = sorted(((-weight, kind) for kind, weight in weights.items() if kind.gpus))
    total, covered = -sum(weight for weight, _ in wanted), 0
    kinds: dict[Kind, int] = {}
    for weight, kind in wanted[:MOST_WEIGHED]:
        kinds[kind] = -weight
        covered -= weight
        if covered * 100 >= total * WEIGHED_PERCENT:
            break
    return kinds


def _average(kinds: Mapping[Kind, int]) -> tuple[int, int]:
    """Units and thousandths of processors of the average pod: only their ratio matters."""
    units = sum(weight * kind.gpus * kind.units for kind, weight in kinds.items())
    cpu_milli = sum(weight * kind.cpu_milli for kind, weight in kinds.items())
    cut = max(units.bit_length() - _UNITS_BITS, 0)
    return units >> cut, cpu_milli >> cut


def _rows(amounts: Iterable[int]) -> Ints:
    return np.array(list(amounts), np.int64).reshape(-1, 1)
