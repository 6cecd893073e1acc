"""The reason for each node that does not take a request, thousands of nodes at a time.

The nodes are split by arrays, one reason after the other, the most final one first; the rest is passed to the next.
Python code runs once per node only to concatenate texts.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from gpushare.api.node.device import MAX_DEVICES, gpu_label
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.gpu_selection import GpuSelection
from gpushare.api.request.request import Request
from gpushare.ledger.arrays import Ints, Mask, Places
from gpushare.ledger.columns import NO_NODE, Columns
from gpushare.ledger.fit import multi_gpu_refusals, reasons
from gpushare.ledger.fit.group import Group
from gpushare.ledger.fit.multi_gpu_refusals import GpuNotes, RefusalTexts
from gpushare.ledger.node_book import SHUT

Texts = dict[str, str]
_UNITS: Final = tuple(MemoryUnit)
#: GPU indices, with ``MAX_DEVICES`` added for MIG instances, and percentages are below ``_PACK``, units below ``_PACK_UNITS``: they are
#: packed into one number.
_PACK: Final = 2 * MAX_DEVICES
_PACK_UNITS: Final = 1 << 32
_LAST_INDEX: Final = _PACK - 1
#: Numbers of rules in a word, with 4 bits each, which leaves the sign alone.
_NIBBLES: Final = 15


def _write_largest(unit: MemoryUnit, key: int) -> str:
    units, reversed_index = divmod(key, _PACK)
    return reasons.largest_free(units * unit.mib, _label(reversed_index))


def _write_nearest(unit: MemoryUnit, key: int) -> str:
    rest, units = divmod(key, _PACK_UNITS)
    core_percent, reversed_index = divmod(rest, _PACK)
    return reasons.nearest(units * unit.mib, _label(reversed_index), core_percent)


def _label(reversed_index: int) -> str:
    instance, index = divmod(_LAST_INDEX - reversed_index, MAX_DEVICES)
    return gpu_label(index, instance=bool(instance))


class Refusals:
    """Writes reasons from the arrays and from the texts recorded per node, by column."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._against: dict[int, tuple[str, str, str]] = {}
        self._notes: dict[int, GpuNotes] = {}
        self._one_gpu: dict[int, str] = {}
        self._largest = {unit: reasons.Parts(partial(_write_largest, unit)) for unit in _UNITS}
        self._nearest = {unit: reasons.Parts(partial(_write_nearest, unit)) for unit in _UNITS}

    def set_node(self, column: int, standing: tuple[str, str, str], notes: GpuNotes, one_gpu: str) -> None:
        """Record why the node takes no requests (for memory, for compute too, for a number of GPUs), notes on its GPUs, and why a
        pod gets one GPU only. Empty texts if nothing applies.
        """
        self.forget_node(column)
        self._against[column] = standing
        if notes.shortage:
            self._notes[column] = notes
        if one_gpu:
            self._one_gpu[column] = one_gpu

    def forget_node(self, column: int) -> None:
        """Clear the column."""
        self._against.pop(column, None)
        self._notes.pop(column, None)
        self._one_gpu.pop(column, None)

    def explain(self, request: Request, names: list[str], at: Places) -> RefusalTexts:
        """The reasons of nodes ``names`` in columns ``at``, none of which takes ``request``."""
        texts = RefusalTexts({}, {})
        unknown, group = Group(names, at).part(at == NO_NODE)
        texts.refused.update(dict.fromkeys(unknown.names, reasons.UNKNOWN_NODE))
        group = self._standing(request, group, texts.hopeless)
        if request.unit_mib:
            group = self._counting_alike(request, group, texts.hopeless)
        if request.core_percent > 100:
            texts.hopeless.update(dict.fromkeys(group.names, reasons.too_much_core(request.core_percent)))
        elif request.selection is None:
            self._of_each_unit(self._columns, request, group, texts)
        else:
            self._among_allowed(request, request.selection, group, texts)
        return texts

    def _among_allowed(
        self, request: Request, selection: GpuSelection, group: Group, texts: RefusalTexts
    ) -> None:
        """As if nodes had only the GPUs that the pod's annotations allow, with a note on the others."""
        rules = self._columns.selection_rules(selection, group.at)
        allowed: Ints = (rules == 0).sum(axis=0)
        too_few: Mask = (allowed < request.gpu_count) & (rules > 0).any(axis=0)
        few, rest = group.part(too_few)
        few_texts = _texts_by_rules(
            rules[:, too_few],
            lambda gpus: reasons.too_few_allowed(request, gpus.count(0), reasons.excluded(selection, gpus)),
        )
        texts.hopeless.update(zip(few.names, few_texts, strict=True))
        if not rest.names:
            return
        rules = rules[:, ~too_few]
        self._of_each_unit(self._columns.only(rules == 0, rest.at), request, rest, texts)
        notes = _texts_by_rules(rules, lambda gpus: reasons.excluded(selection, gpus))
        for name, note in zip(rest.names, notes, strict=True):
            if note:
                (texts.refused if name in texts.refused else texts.hopeless)[name] += f"; {note}"

    def _of_each_unit(self, columns: Columns, request: Request, group: Group, texts: RefusalTexts) -> None:
        unit_mib = columns.unit_mib[group.at]
        for unit in _UNITS:
            of_unit, _ = group.part(unit_mib == unit.mib)
            if not of_unit.names:
                continue
            if request.is_ordinary:
                self._of_unit(columns, request, unit, of_unit, texts)
            else:
                multi_gpu_refusals.explain(
                    columns, request, unit, of_unit, texts, self._notes, self._one_gpu, self._not_full
                )

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
        hopeless.update(other.texts(units_mib, lambda mib: reasons.other_unit(request, mib)))
        return rest

    def _of_unit(
        self, columns: Columns, request: Request, unit: MemoryUnit, group: Group, texts: RefusalTexts
    ) -> None:
        refused, hopeless = texts
        asked = request.memory_units
        asked_mib = asked * unit.mib
        large, group = group.part(columns.largest_units[group.at] < asked)
        sizes = columns.largest_units[large.at].tolist()
        hopeless.update(large.texts(sizes, lambda size: reasons.too_large(request, size, unit)))
        sick, group = group.part(columns.healthy_units[group.at] < asked)
        for name, column in zip(sick.names, sick.at.tolist(), strict=True):
            hopeless[name] = reasons.only_unhealthy(asked_mib, self._notes[column].unhealthy)
        others = (columns.memory_pods if request.wants_core else columns.core_pods)[group.at]
        mixed, group = group.part(others > 0)
        refused.update(mixed.texts(others[others > 0].tolist(), lambda count: reasons.mixed(request, count)))
        group = self._not_full(group, refused)
        if group.names:
            self._short(columns, request, unit, group, refused)
            noted, _ = group.part(columns.noted[group.at] > 0)
            for name, column in zip(noted.names, noted.at.tolist(), strict=True):
                refused[name] += f"; {self._notes[column].shortage}"

    def _not_full(self, group: Group, refused: Texts) -> Group:
        """Split off the nodes whose pod cap is reached; returns the others."""
        columns = self._columns
        full, group = group.part(columns.full[group.at] == 1)
        counts = (columns.memory_pods[full.at] + columns.core_pods[full.at]).tolist()
        for name, column, count in zip(full.names, full.at.tolist(), counts, strict=True):
            note = self._notes[column].unhealthy if column in self._notes else ""
            refused[name] = reasons.node_at_cap(count) + (f"; {note}" if note else "")
        return group

    def _short(
        self, columns: Columns, request: Request, unit: MemoryUnit, group: Group, refused: Texts
    ) -> None:
        """Nodes that would take the request if enough were free."""
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
        present = columns.units.take(no_room.at, axis=1) > 0
        in_service = (present & (room[:, short] != SHUT)).sum(axis=0)
        gpus = present.sum(axis=0)
        for place in np.flatnonzero((largest[short] < _PACK) & (in_service < gpus)).tolist():
            refused[no_room.names[place]] = head + reasons.full_in_service(
                int(in_service[place]), int(gpus[place])
            )
        if not group.names:
            return
        fits = columns.fit_units.take(group.at, axis=1)
        capped, busy = group.part(fits.max(axis=0) < asked)
        refused.update(capped.texts(columns.max_pods[capped.at].tolist(), reasons.at_cap))
        if busy.names:
            self._no_compute(columns, request, unit, busy, refused)

    def _no_compute(
        self, columns: Columns, request: Request, unit: MemoryUnit, group: Group, refused: Texts
    ) -> None:
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
        instances = self._columns.instance.take(group.at, axis=1).astype(np.int64)
        reversed_index: Ints = (
            _LAST_INDEX - self._columns.index.take(group.at, axis=1) - MAX_DEVICES * instances
        )
        return reversed_index


def _texts_by_rules(rules: Ints, write: Callable[[tuple[int, ...]], str]) -> list[str]:
    """For each node a text by the rules (``Columns.selection_rules``) of its GPUs, written once for all nodes that are alike."""
    # Packed into words: thousands of nodes have few distinct combinations.
    nibbles = rules.astype(np.int64) + 1
    words = [
        (nibbles[start : start + _NIBBLES] << 4 * np.arange(min(_NIBBLES, len(rules) - start))[:, None]).sum(
            axis=0
        )
        for start in range(0, len(rules), _NIBBLES)
    ]
    keys = list(zip(*(word.tolist() for word in words), strict=True))
    text_of = {
        key: write(tuple((word >> 4 * place & 15) - 1 for word in key for place in range(_NIBBLES)))
        for key in set(keys)
    }
    return list(map(text_of.__getitem__, keys))
