"""The same as ``lookahead/lookahead.c``, for where that library is missing: a hundred times slower, with the same values."""

from bisect import insort
from typing import Final

from gpushare.ledger.arrays import Ints, Mask
from gpushare.ledger.node_book import UNKNOWN_CPU_MILLI
from gpushare.ledger.placement.fragmentation.outlook import OFFERS, Outlook
from gpushare.ledger.placement.fragmentation.state import OPEN_TO_CORE, OPEN_TO_MEMORY, State
from gpushare.ledger.placement.fragmentation.workload_mix import Kind

#: GPUs of a node that are considered.
MOST_GPUS: Final = 64
#: Values in the table, which is emptied when it is full.
_MOST_VALUES: Final = 1 << 15
#: Steps that reading the table takes; the same in C.
_TABLE_STEPS: Final = 5

_Gpu = tuple[int, int, int]
"""Units, percent of compute, 1 if untouched; ascending, so the first that takes a request is the tightest."""
_Node = tuple[tuple[_Gpu, ...], int, int]
"""GPUs that have something free; free thousandths of processors; what the node is open to."""


class Rollout:
    """Computes values of nodes by one outlook, and caches them."""

    def __init__(self, outlook: Outlook) -> None:
        self._kinds = outlook.kinds
        self._sequences = [
            [outlook.kinds[place] for place in outlook.offers[start : start + OFFERS]]
            for start in range(0, len(outlook.offers), OFFERS)
        ]
        self._values: dict[_Node, int] = {}
        self._steps = 0

    def values(
        self, now: State, after: State, replaced: Mask, steps: int, values: Ints, values_after: Ints
    ) -> tuple[int, int]:
        """As ``lookahead_values`` in C; returns how many nodes have values, and the steps that are left."""
        self._steps = steps
        before_gpus, after_gpus = _gpus_of(now), _gpus_of(after)
        lines, lines_after = _lines_of(now), _lines_of(after)
        wanted = replaced.T.tolist()
        for node, gpus in enumerate(before_gpus):
            if self._steps <= 0:
                return node, self._steps
            values[node] = self._value(gpus, *lines[node])
            known: dict[tuple[_Gpu, _Gpu], int] = {}
            for row, gpu in enumerate(gpus):
                if not wanted[node][row]:
                    continue
                pair = gpu, after_gpus[node][row]
                if pair not in known:
                    some = [*gpus[:row], pair[1], *gpus[row + 1 :]]
                    known[pair] = self._value(some, *lines_after[node])
                values_after[row, node] = known[pair]
        return len(before_gpus), self._steps

    def _value(self, gpus: list[_Gpu], cpu_milli: int, open_to: int) -> int:
        self._steps -= _TABLE_STEPS
        state = tuple(sorted([gpu for gpu in gpus if gpu[0] > 0][:MOST_GPUS])), cpu_milli, open_to
        value = self._values.get(state)
        if value is None:
            value = self._roll_out(state)
            if len(self._values) >= _MOST_VALUES:
                self._values.clear()
            self._values[state] = value
        return value

    def _roll_out(self, start: _Node) -> int:
        gpus, cpu_milli, open_to = start
        fitting = {kind for kind in self._kinds if _find(list(gpus), cpu_milli, open_to, kind)}
        self._steps -= len(self._kinds)
        placed = 0
        for sequence in self._sequences:
            free, cpu, open_now, fits = list(gpus), cpu_milli, open_to, fitting.copy()
            for kind in sequence:
                if kind not in fits:
                    continue
                self._steps -= 1
                found = _find(free, cpu, open_now, kind)
                if not found:
                    fits.discard(kind)  # what does not fit once never fits again
                    continue
                placed += _place(free, found, kind)
                if not free:
                    break
                if cpu != UNKNOWN_CPU_MILLI:
                    cpu -= kind.cpu_milli
                open_now &= _need(kind)
        return placed


def _need(kind: Kind) -> int:
    return OPEN_TO_CORE if kind.core_percent else OPEN_TO_MEMORY


def _takes(gpu: _Gpu, kind: Kind) -> bool:
    units, core_percent, untouched = gpu
    return (
        units >= kind.units
        and (not kind.core_percent or core_percent >= kind.core_percent)
        and (not kind.whole or untouched == 1)
    )


def _find(gpus: list[_Gpu], cpu_milli: int, open_to: int, kind: Kind) -> list[_Gpu]:
    """The tightest GPUs for a pod; none if it does not fit."""
    if not open_to & _need(kind) or cpu_milli < kind.cpu_milli or kind.gpus > len(gpus):
        return []
    found: list[_Gpu] = []
    for gpu in gpus:
        if _takes(gpu, kind):
            found.append(gpu)
            if len(found) == kind.gpus:
                return found
    return []


def _place(gpus: list[_Gpu], found: list[_Gpu], kind: Kind) -> int:
    """Take the pod's share off the GPUs ``found``; returns the units that it is allocated."""
    placed = 0
    for gpu in found:
        units = gpu[0] if kind.whole else kind.units
        placed += units
        gpus.remove(gpu)
        if gpu[0] > units:
            insort(gpus, (gpu[0] - units, gpu[1] - kind.core_percent, 0))
    return placed


def _gpus_of(state: State) -> list[list[_Gpu]]:
    planes = (plane.T.tolist() for plane in (state.fit_units, state.free_core, state.untouched))
    return [list(zip(*gpus, strict=True)) for gpus in zip(*planes, strict=True)]


def _lines_of(state: State) -> list[tuple[int, int]]:
    return list(zip(state.cpu_milli.tolist(), state.open_to.tolist(), strict=True))
