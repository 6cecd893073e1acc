"""kube-scheduler's own filters and scores for pods of one template, cached from pod to pod.

Pods of a Deployment are identical: for the next one only nodes that have changed are examined again.
"""

from typing import Final

import msgspec

from gpushare.api import names
from gpushare.api.json_objects import Json, spec_of
from gpushare.kubescheduler.filters import Wanted
from gpushare.kubescheduler.node_usage import Occupancy
from gpushare.kubescheduler.scores import Points, points_of

#: kube-scheduler makes a claim of shares by extended resource, which no node offers.
_CLAIMED: Final = frozenset((names.GPU_SHARE,))
_MOST_TEMPLATES: Final = 64


class Column:
    """For every node, in kube-scheduler's order, why it does not take pods of a template, or its points."""

    __slots__ = ("read", "results", "wanted")

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.read = 0
        """How much of the log of changes was processed."""
        self.results: dict[str, list[str] | Points] = {}

    def feasible(self) -> dict[str, Points]:
        """The nodes that take such a pod."""
        return {name: result for name, result in self.results.items() if isinstance(result, Points)}

    def refusals(self) -> list[list[str]]:
        """Why the other nodes do not."""
        return [result for result in self.results.values() if not isinstance(result, Points)]


class Columns:
    """``changed`` must be called for every node that has changed."""

    def __init__(self, nodes: Occupancy, ignored: frozenset[str]) -> None:
        self._nodes = nodes
        self._ignored = ignored
        self._log: list[str] = []
        self._columns: dict[bytes, Column] = {}

    def changed(self, node: str) -> None:
        """Pods or properties of ``node`` have changed."""
        self._log.append(node)

    def of(self, pod: Json, *, by_extender: bool) -> Column:
        """The current column for ``pod``. If the extender is asked, resources that are left to it do not count."""
        key = msgspec.json.encode((by_extender, {**spec_of(pod), "schedulerName": ""}))
        column = self._columns.pop(key, None)
        if column is None:
            column = Column(Wanted(pod, _CLAIMED | (self._ignored if by_extender else frozenset())))
            stale = [state.name for state in self._nodes]
        else:
            stale = list(dict.fromkeys(self._log[column.read :]))
        column.read = len(self._log)
        for name in stale:
            self._update(column, name)
        self._columns[key] = column
        if len(self._columns) > _MOST_TEMPLATES:
            del self._columns[next(iter(self._columns))]
        return column

    def _update(self, column: Column, name: str) -> None:
        state = self._nodes.node(name)
        if state is not None:  # a pod may be bound to a node that does not exist
            column.results[name] = column.wanted.refusals(state) or points_of(column.wanted, state)
