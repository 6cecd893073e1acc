"""Which nodes are in which unit: one row of booleans a unit, over all nodes that are known.

A call of kube-scheduler names thousands of nodes; whatever is asked about them is one numpy operation over their columns.
A node that changes touches one cell of each row.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from gpushare.api.crd.resource_policy import Labels, Unit
from gpushare.ledger.arrays import Found, Index, Mask, Places

#: The column of names that are not known: in no unit.
NOBODY: Final = 0
_FIRST_COLUMNS: Final = 64


class Row:
    """The nodes of one unit: ``mask`` by column."""

    __slots__ = ("mask", "unit")

    def __init__(self, unit: Unit, columns: int) -> None:
        self.unit = unit
        self.mask: Mask = np.zeros(columns, np.bool_)


class Nodes:
    """Labels of nodes by name, and the rows of the units that somebody asks about."""

    def __init__(self) -> None:
        self._labels: dict[str, Labels] = {}
        self._column_of = Index(NOBODY)
        self._unused: list[int] = []
        self._columns = _FIRST_COLUMNS
        self._next = NOBODY + 1
        self._rows: list[Row] = []
        self._found = Found(self._column_of)

    def __len__(self) -> int:
        return len(self._labels)

    def names(self) -> list[str]:
        """All that are known."""
        return list(self._labels)

    def set(self, name: str, labels: Labels) -> bool:
        """Take a node as it is now; whether anything has changed for us."""
        if self._labels.get(name) == labels:
            return False
        self._labels[name] = labels
        column = self._column_of.get(name)
        if column is None:
            column = self._column_of[name] = self._take()
            self._found.forget()
        for row in self._rows:
            row.mask[column] = row.unit.has_node(labels)
        return True

    def remove(self, name: str) -> bool:
        """Forget a node; false if it was not known."""
        if self._labels.pop(name, None) is None:
            return False
        column = self._column_of.pop(name)
        self._found.forget()
        self._unused.append(column)
        for row in self._rows:
            row.mask[column] = False
        return True

    def places(self, names: Sequence[str]) -> Places:
        """The columns of ``names``, which nobody may change."""
        return self._found.places(names)

    def place(self, name: str) -> int:
        """The column of one name."""
        return self._column_of.get(name, NOBODY)

    def add_row(self, unit: Unit) -> Row:
        """Follow which nodes are in ``unit``, until ``drop_row``."""
        row = Row(unit, self._columns)
        for name, labels in self._labels.items():
            row.mask[self._column_of[name]] = unit.has_node(labels)
        self._rows.append(row)
        return row

    def drop_row(self, row: Row) -> None:
        """Follow it no more."""
        self._rows.remove(row)

    def _take(self) -> int:
        if self._unused:
            return self._unused.pop()
        if self._next == self._columns:
            for row in self._rows:
                row.mask = np.concatenate((row.mask, np.zeros(self._columns, np.bool_)))
            self._columns *= 2
        self._next += 1
        return self._next - 1
