"""For each node that does not take a request the reason, thousands of nodes at a time.

The nodes are parted by arrays, one reason after the other, the most final first; what is left goes on
to the next. Python's part is a concatenation per node.
"""

from functools import partial
from itertools import compress
from typing import Final, NamedTuple

import numpy as np

from gpushare.ledger import reasons
from gpushare.ledger.columns import NO_NODE, Columns, Ints, Mask, Places
from gpushare.ledger.fitting import MOST_UNITS
from gpushare.model.quantity import MemoryUnit
from gpushare.model.request import Request

type_of_texts = dict[str, str]
_UNITS: Final = tuple(MemoryUnit)
#: GPU indices and percentages are smaller, so that they and an amount pack into one number.
_PACK: Final = 128


class _Group(NamedTuple):
    """Nodes and their columns."""

    names: list[str]
    at: Places

    def part(self, mask: Mask) -> tuple["_Group", "_Group"]:
        """Those of ``mask``, and the others."""
        if not mask.any():
            return _Group([], self.at[:0]), self
        if mask.all():
            return self, _Group([], self.at[:0])
        other = ~mask
        return self._only(mask), self._only(other)

    def _only(self, mask: Mask) -> "_Group":
        return _Group(list(compress(self.names, mask.tolist())), self.at[mask])


def _write_largest(unit: MemoryUnit, key: int) -> str:
    units, gpu = divmod(key, _PACK)
    return reasons.largest_free(units * unit.mib, gpu)


def _write_nearest(unit: MemoryUnit, key: int) -> str:
    rest, gpu = divmod(key, _PACK)
    units, core_percent = divmod(rest, _PACK)
    return reasons.nearest(units * unit.mib, gpu, core_percent)


class Refusals:
    """Explains refusals from the arrays, and from what stands against a node or its GPUs, by column."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._against: dict[int, tuple[str, str]] = {}
        self._unhealthy: dict[int, str] = {}
        self._largest = {unit: reasons.Parts(partial(_write_largest, unit)) for unit in _UNITS}
        self._nearest = {unit: reasons.Parts(partial(_write_nearest, unit)) for unit in _UNITS}

    def set_node(self, column: int, standing: tuple[str, str], unhealthy: str) -> None:
        """Note what stands against a node's requests for memory, and for compute too, and its unhealthy GPUs.

        Empty texts where nothing does.
        """
        self.forget_node(column)
        if any(standing):
            self._against[column] = standing
        if unhealthy:
            self._unhealthy[column] = unhealthy

    def forget_node(self, column: int) -> None:
        """The column is empty from now on."""
        self._against.pop(column, None)
        self._unhealthy.pop(column, None)

    def explain(self, request: Request, names: list[str], at: Places) -> tuple[type_of_texts, type_of_texts]:
        """(refused, hopeless) for nodes ``names`` in columns ``at``, none of which takes ``request``."""
        refused: type_of_texts = {}
        hopeless: type_of_texts = {}
        unknown, group = _Group(names, at).part(at == NO_NODE)
        refused.update(dict.fromkeys(unknown.names, reasons.UNKNOWN_NODE))
        group = self._standing(request, group, hopeless)
        if request.core_percent > 100:
            hopeless.update(dict.fromkeys(group.names, reasons.too_much_core(request.core_percent)))
            return refused, hopeless
        unit_mib = self._columns.unit_mib[group.at]
        for unit in _UNITS:
            of_unit, _ = group.part(unit_mib == unit.mib)
            if of_unit.names:
                self._of_unit(request, unit, of_unit, refused, hopeless)
        return refused, hopeless

    def _standing(self, request: Request, group: _Group, hopeless: type_of_texts) -> _Group:
        if not self._against:
            return group
        kind = int(request.wants_core)
        texts = [
            self._against[column][kind] if column in self._against else "" for column in group.at.tolist()
        ]
        against = np.fromiter(map(bool, texts), np.bool_, len(texts))
        stopped, rest = group.part(against)
        hopeless.update(zip(stopped.names, filter(None, texts), strict=True))
        return rest

    def _of_unit(
        self,
        request: Request,
        unit: MemoryUnit,
        group: _Group,
        refused: type_of_texts,
        hopeless: type_of_texts,
    ) -> None:
        columns = self._columns
        asked = min(request.memory_units, MOST_UNITS)
        asked_mib = request.memory_units * unit.mib
        large, group = group.part(columns.largest_units[group.at] < asked)
        sizes = columns.largest_units[large.at].tolist()
        text_of = {size: reasons.too_large(asked_mib, size, unit) for size in set(sizes)}
        hopeless.update(zip(large.names, map(text_of.__getitem__, sizes), strict=True))
        sick, group = group.part(columns.healthy_units[group.at] < asked)
        for name, column in zip(sick.names, sick.at.tolist(), strict=True):
            hopeless[name] = reasons.only_unhealthy(asked_mib, self._unhealthy[column])
        others = (columns.memory_pods if request.wants_core else columns.core_pods)[group.at]
        mixed, group = group.part(others > 0)
        counts = others[others > 0].tolist()
        text_of = {count: reasons.mixed(request, count) for count in set(counts)}
        refused.update(zip(mixed.names, map(text_of.__getitem__, counts), strict=True))
        if group.names:
            texts = self._short(request, unit, group)
            self._note_unhealthy(group, texts)
            refused.update(texts)

    def _short(self, request: Request, unit: MemoryUnit, group: _Group) -> type_of_texts:
        """Nodes that would take the request if enough were free."""
        columns = self._columns
        asked = request.memory_units
        asked_mib = asked * unit.mib
        room = columns.room_units.take(group.at, axis=1)
        short = room.max(axis=0) < asked
        no_room, group_left = group.part(short)
        texts = self._no_room(asked_mib, unit, no_room, room[:, short])
        if group_left.names:
            fits = columns.fit_units.take(group_left.at, axis=1)
            capped, busy = group_left.part(fits.max(axis=0) < asked)
            caps = columns.max_pods[capped.at].tolist()
            text_of = {cap: reasons.at_cap(cap) for cap in set(caps)}
            texts.update(zip(capped.names, map(text_of.__getitem__, caps), strict=True))
            if busy.names:
                texts.update(self._no_compute(request, asked_mib, unit, busy))
        return texts

    def _no_room(self, asked_mib: int, unit: MemoryUnit, group: _Group, room: Ints) -> type_of_texts:
        if not group.names:
            return {}
        rows = room.argmax(axis=0)
        best = room[rows, np.arange(len(rows))].astype(np.int64)
        keys = (best * _PACK + self._columns.index[rows, group.at]).tolist()
        head, parts = reasons.no_room(asked_mib), self._largest[unit]
        return dict(zip(group.names, [head + parts[key] for key in keys], strict=True))

    def _no_compute(self, request: Request, asked_mib: int, unit: MemoryUnit, group: _Group) -> type_of_texts:
        columns = self._columns
        fits = columns.fit_units.take(group.at, axis=1)
        core = np.where(fits >= request.memory_units, columns.free_core.take(group.at, axis=1), -1)
        rows = core.argmax(axis=0)
        each = np.arange(len(rows))
        units = fits[rows, each].astype(np.int64)
        keys = ((units * _PACK + core[rows, each]) * _PACK + columns.index[rows, group.at]).tolist()
        head, parts = reasons.no_compute(asked_mib, request.core_percent), self._nearest[unit]
        return dict(zip(group.names, [head + parts[key] for key in keys], strict=True))

    def _note_unhealthy(self, group: _Group, texts: type_of_texts) -> None:
        sick, _ = group.part(self._columns.unhealthy[group.at] > 0)
        for name, column in zip(sick.names, sick.at.tolist(), strict=True):
            texts[name] += f"; {self._unhealthy[column]}"
