"""The reason for each node that does not take a request, thousands of nodes at a time.

The nodes are split by arrays, one reason after the other, the most final one first; the rest is passed to the next.
Python code runs once per node only to concatenate texts.
"""

from functools import partial
from typing import Final

import numpy as np

from gpushare.api.node.device import MAX_DEVICES
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.request import Request
from gpushare.ledger.arrays import Ints, Places
from gpushare.ledger.columns import NO_NODE, Columns
from gpushare.ledger.fit import multi_gpu_refusals, reasons
from gpushare.ledger.fit.group import Group
from gpushare.ledger.fit.single_gpu import MOST_UNITS

Texts = dict[str, str]
_UNITS: Final = tuple(MemoryUnit)
#: GPU indices and percentages are below ``_PACK``, units below ``_PACK_UNITS``: they are packed into one number.
_PACK: Final = MAX_DEVICES
_PACK_UNITS: Final = 1 << 32
_LAST_INDEX: Final = MAX_DEVICES - 1


def _write_largest(unit: MemoryUnit, key: int) -> str:
    units, reversed_index = divmod(key, _PACK)
    return reasons.largest_free(units * unit.mib, _LAST_INDEX - reversed_index)


def _write_nearest(unit: MemoryUnit, key: int) -> str:
    rest, units = divmod(key, _PACK_UNITS)
    core_percent, reversed_index = divmod(rest, _PACK)
    return reasons.nearest(units * unit.mib, _LAST_INDEX - reversed_index, core_percent)


class Refusals:
    """Writes reasons from the arrays and from the texts recorded per node, by column."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._against: dict[int, tuple[str, str, str]] = {}
        self._unhealthy: dict[int, str] = {}
        self._one_gpu: dict[int, str] = {}
        self._largest = {unit: reasons.Parts(partial(_write_largest, unit)) for unit in _UNITS}
        self._nearest = {unit: reasons.Parts(partial(_write_nearest, unit)) for unit in _UNITS}

    def set_node(self, column: int, standing: tuple[str, str, str], unhealthy: str, one_gpu: str) -> None:
        """Record why the node takes no requests (for memory, for compute too, for a number of GPUs), which of its GPUs are
        unhealthy, and why a pod gets one GPU only. Empty texts if nothing applies.
        """
        self.forget_node(column)
        self._against[column] = standing
        if unhealthy:
            self._unhealthy[column] = unhealthy
        if one_gpu:
            self._one_gpu[column] = one_gpu

    def forget_node(self, column: int) -> None:
        """Clear the column."""
        self._against.pop(column, None)
        self._unhealthy.pop(column, None)
        self._one_gpu.pop(column, None)

    def explain(self, request: Request, names: list[str], at: Places) -> tuple[Texts, Texts]:
        """(refused, hopeless) for nodes ``names`` in columns ``at``, none of which takes ``request``."""
        refused: Texts = {}
        hopeless: Texts = {}
        unknown, group = Group(names, at).part(at == NO_NODE)
        refused.update(dict.fromkeys(unknown.names, reasons.UNKNOWN_NODE))
        group = self._standing(request, group, hopeless)
        if request.unit_mib:
            group = self._counting_alike(request, group, hopeless)
        if request.core_percent > 100:
            hopeless.update(dict.fromkeys(group.names, reasons.too_much_core(request.core_percent)))
            return refused, hopeless
        explain = self._of_unit if request.is_ordinary else self._of_unit_beyond_one_share
        unit_mib = self._columns.unit_mib[group.at]
        for unit in _UNITS:
            of_unit, _ = group.part(unit_mib == unit.mib)
            if of_unit.names:
                explain(request, unit, of_unit, refused, hopeless)
        return refused, hopeless

    def _standing(self, request: Request, group: Group, hopeless: Texts) -> Group:
        columns = self._columns
        against, kind = columns.no_memory, 0
        if request.by_gpu:
            against, kind = columns.no_whole, 2
        elif request.wants_core:
            against, kind = columns.no_core, 1
        stopped, rest = group.part(against[group.at] == 1)
        hopeless.update(
            zip(stopped.names, [self._against[column][kind] for column in stopped.at.tolist()], strict=True)
        )
        return rest

    def _counting_alike(self, request: Request, group: Group, hopeless: Texts) -> Group:
        """Split off the nodes whose unit differs from the one in which the request was counted; returns the others."""
        other, rest = group.part(self._columns.unit_mib[group.at] != request.unit_mib)
        units_mib = self._columns.unit_mib[other.at].tolist()
        text_of = {mib: reasons.other_unit(request, mib) for mib in set(units_mib)}
        hopeless.update(zip(other.names, map(text_of.__getitem__, units_mib), strict=True))
        return rest

    def _of_unit(
        self,
        request: Request,
        unit: MemoryUnit,
        group: Group,
        refused: Texts,
        hopeless: Texts,
    ) -> None:
        columns = self._columns
        asked = min(request.memory_units, MOST_UNITS)
        asked_mib = request.memory_units * unit.mib
        large, group = group.part(columns.largest_units[group.at] < asked)
        sizes = columns.largest_units[large.at].tolist()
        text_of = {size: reasons.too_large(request, size, unit) for size in set(sizes)}
        hopeless.update(zip(large.names, map(text_of.__getitem__, sizes), strict=True))
        sick, group = group.part(columns.healthy_units[group.at] < asked)
        for name, column in zip(sick.names, sick.at.tolist(), strict=True):
            hopeless[name] = reasons.only_unhealthy(asked_mib, self._unhealthy[column])
        others = (columns.memory_pods if request.wants_core else columns.core_pods)[group.at]
        mixed, group = group.part(others > 0)
        counts = others[others > 0].tolist()
        text_of = {count: reasons.mixed(request, count) for count in set(counts)}
        refused.update(zip(mixed.names, map(text_of.__getitem__, counts), strict=True))
        group = self._not_full(group, refused)
        if group.names:
            self._short(request, unit, group, refused)
            sick, _ = group.part(columns.unhealthy[group.at] > 0)
            for name, column in zip(sick.names, sick.at.tolist(), strict=True):
                refused[name] += f"; {self._unhealthy[column]}"

    def _not_full(self, group: Group, refused: Texts) -> Group:
        """Split off the nodes whose pod cap is reached; returns the others."""
        columns = self._columns
        full, group = group.part(columns.full[group.at] == 1)
        counts = (columns.memory_pods[full.at] + columns.core_pods[full.at]).tolist()
        for name, column, count in zip(full.names, full.at.tolist(), counts, strict=True):
            note = self._unhealthy.get(column, "")
            refused[name] = reasons.node_at_cap(count) + (f"; {note}" if note else "")
        return group

    def _of_unit_beyond_one_share(
        self,
        request: Request,
        unit: MemoryUnit,
        group: Group,
        refused: Texts,
        hopeless: Texts,
    ) -> None:
        texts = multi_gpu_refusals.explain(
            self._columns, request, unit, group, self._unhealthy, self._one_gpu, self._not_full
        )
        refused.update(texts.refused)
        hopeless.update(texts.hopeless)

    def _short(self, request: Request, unit: MemoryUnit, group: Group, refused: Texts) -> None:
        """Nodes that would take the request if enough were free."""
        columns = self._columns
        asked = request.memory_units
        asked_mib = asked * unit.mib
        room = columns.room_units.take(group.at, axis=1)
        # The most room and its GPU (the lowest index among equals), packed into one number.
        largest = (room.astype(np.int64) * _PACK + self._reversed_index(group)).max(axis=0)
        short = largest < asked * _PACK
        no_room, group = group.part(short)
        head, parts = reasons.no_room(asked_mib), self._largest[unit]
        refused.update(
            zip(no_room.names, [head + parts[key] for key in largest[short].tolist()], strict=True)
        )
        partly_full = (largest[short] < _PACK) & (columns.unhealthy[no_room.at] > 0)
        for name, column in zip(*no_room.part(partly_full)[0], strict=True):
            gpus = int((columns.total_mib[:, column] > 0).sum())
            refused[name] = head + reasons.full_in_service(gpus - int(columns.unhealthy[column]), gpus)
        if not group.names:
            return
        fits = columns.fit_units.take(group.at, axis=1)
        capped, busy = group.part(fits.max(axis=0) < asked)
        caps = columns.max_pods[capped.at].tolist()
        text_of = {cap: reasons.at_cap(cap) for cap in set(caps)}
        refused.update(zip(capped.names, map(text_of.__getitem__, caps), strict=True))
        if busy.names:
            self._no_compute(request, unit, busy, refused)

    def _no_compute(self, request: Request, unit: MemoryUnit, group: Group, refused: Texts) -> None:
        columns = self._columns
        fits = columns.fit_units.take(group.at, axis=1)
        core = np.where(fits >= request.memory_units, columns.free_core.take(group.at, axis=1), -1).astype(
            np.int64
        )
        # The most compute, its GPU (the lowest index among equals) and its room, packed into one number.
        most = ((core * _PACK + self._reversed_index(group)) * _PACK_UNITS + fits).max(axis=0)
        head = reasons.no_compute(request.memory_units * unit.mib, request.core_percent)
        parts = self._nearest[unit]
        refused.update(zip(group.names, [head + parts[key] for key in most.tolist()], strict=True))

    def _reversed_index(self, group: Group) -> Ints:
        """Decreases with the GPU's index; added so that the lowest index wins among equals."""
        reversed_index: Ints = _LAST_INDEX - self._columns.index.take(group.at, axis=1)
        return reversed_index
