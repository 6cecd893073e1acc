"""kube-scheduler's own filters and scores for pods of one template, kept between two of them.

Pods of a Deployment are alike: for the next one only those nodes are looked at again on which something has changed.
"""

from typing import Final

import msgspec

from gpushare.api.json_objects import Json, spec_of
from gpushare.kubescheduler.filters import Wanted
from gpushare.kubescheduler.node_usage import Occupancy
from gpushare.kubescheduler.scores import Points, points_of

_MOST_TEMPLATES: Final = 64


class Column:
    """For every node, in kube-scheduler's order, why it does not take pods of a template, or its points."""

    __slots__ = ("found", "read", "wanted")

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.read = 0
        """How much of the log of changes is in it."""
        self.found: dict[str, list[str] | Points] = {}

    def feasible(self) -> dict[str, Points]:
        """The nodes that take such a pod."""
        return {name: found for name, found in self.found.items() if isinstance(found, Points)}

    def refusals(self) -> list[list[str]]:
        """Why the others do not."""
        return [found for found in self.found.values() if not isinstance(found, Points)]


class Columns:
    """``changed`` has to be told of every node on which something has changed."""

    def __init__(self, nodes: Occupancy, ignored: frozenset[str]) -> None:
        self._nodes = nodes
        self._ignored = ignored
        self._log: list[str] = []
        self._columns: dict[bytes, Column] = {}

    def changed(self, node: str) -> None:
        """Pods or properties of ``node`` have changed."""
        self._log.append(node)

    def of(self, pod: Json, *, by_extender: bool) -> Column:
        """The column for ``pod``, as of now. Where the extender is asked, resources that are left to it do not count."""
        key = msgspec.json.encode((by_extender, {**spec_of(pod), "schedulerName": ""}))
        column = self._columns.pop(key, None)
        if column is None:
            column = Column(Wanted(pod, self._ignored if by_extender else ()))
            stale = [state.name for state in self._nodes]
        else:
            stale = list(dict.fromkeys(self._log[column.read :]))
        column.read = len(self._log)
        for name in stale:
            self._look(column, name)
        self._columns[key] = column
        if len(self._columns) > _MOST_TEMPLATES:
            del self._columns[next(iter(self._columns))]
        return column

    def _look(self, column: Column, name: str) -> None:
        state = self._nodes.node(name)
        if state is not None:  # a pod may lie on a node that is not there
            column.found[name] = column.wanted.refusals(state) or points_of(column.wanted, state)
