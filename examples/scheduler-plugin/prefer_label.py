"""A scheduler plugin for gpushare: nodes whose label has a given value come first."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gpushare.scheduler.framework.cycle_state import CycleState
from gpushare.scheduler.framework.interface import Handle


class PreferLabel:
    """Implements ``RawNodes``, to read labels, and ``Score``."""

    def __init__(self, label: str, value: str) -> None:
        self._label = label
        self._value = value
        self._preferred: set[str] = set()

    def node_read(self, name: str, raw: bytes) -> None:
        """A node was listed, added or changed."""
        labels = json.loads(raw)["metadata"].get("labels") or {}
        if labels.get(self._label) == self._value:
            self._preferred.add(name)
        else:
            self._preferred.discard(name)

    def node_removed(self, name: str) -> None:
        """A node is gone."""
        self._preferred.discard(name)

    def score(self, state: CycleState, nodes: Sequence[str]) -> Mapping[str, float]:
        """The most for preferred nodes; all others have 0."""
        return {name: 10.0 for name in nodes if name in self._preferred}


def new(handle: Handle, arguments: Mapping[str, Any]) -> PreferLabel:
    """What the entry point names; ``arguments`` are those of the chart's ``extender.plugins.prefer-label``."""
    if arguments.keys() != {"label", "value"}:
        raise ValueError("give label and value, and nothing else but weight")
    return PreferLabel(str(arguments["label"]), str(arguments["value"]))
