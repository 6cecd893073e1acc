"""Which nodes are in which unit: a row of booleans per unit, with a column per known node.

A request of kube-scheduler names thousands of nodes, so each query is one numpy operation over their columns.
A changed node updates one cell of each row.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from gpushare.api.crd.resource_policy import Labels, Unit
from gpushare.ledger.arrays import ColumnCache, Index, Mask, Places

#: The column of unknown names, which are in no unit.
_UNKNOWN: Final = 0
_FIRST_COLUMNS: Final = 64


class Row:
    """The nodes of one unit: ``mask`` has a boolean per column."""

    __slots__ = ("mask", "unit")

    def __init__(self, unit: Unit, columns: int) -> None:
        self.unit = unit
        self.mask: Mask = np.zeros(columns, np.bool_)


class Nodes:
    """Labels of nodes by name, and the rows of units in use."""

    def __init__(self) -> None:
        self._labels: dict[str, Labels] = {}
        self._column_of = Index(_UNKNOWN)
        self._unused: list[int] = []
        self._columns = _FIRST_COLUMNS
        self._next = _UNKNOWN + 1
        self._rows: list[Row] = []
        self._found = ColumnCache(self._column_of)

    def __len__(self) -> int:
        return len(self._labels)

    def names(self) -> list[str]:
        """The names of all known nodes."""
        return list(self._labels)

    def set(self, name: str, labels: Labels) -> bool:
        """Add or update a node; returns whether its labels have changed."""
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
        """The columns of ``names``. The array is shared, so callers must not change it."""
        return self._found.places(names)

    def place(self, name: str) -> int:
        """The column of one name."""
        return self._column_of.get(name, _UNKNOWN)

    def add_row(self, unit: Unit) -> Row:
        """Maintain a row for ``unit`` until ``drop_row``."""
        row = Row(unit, self._columns)
        for name, labels in self._labels.items():
            row.mask[self._column_of[name]] = unit.has_node(labels)
        self._rows.append(row)
        return row

    def drop_row(self, row: Row) -> None:
        """Stop maintaining the row."""
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
