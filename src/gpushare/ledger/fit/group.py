"""Nodes that are examined together and split by the reason that applies to each."""

from itertools import compress
from typing import NamedTuple

from gpushare.ledger.arrays import Mask, Places


class Group(NamedTuple):
    """Nodes and their columns."""

    names: list[str]
    at: Places

    def part(self, mask: Mask) -> tuple["Group", "Group"]:
        """The nodes in ``mask``, and the others."""
        if not mask.any():
            return Group([], self.at[:0]), self
        if mask.all():
            return self, Group([], self.at[:0])
        other = ~mask
        return self._only(mask), self._only(other)

    def _only(self, mask: Mask) -> "Group":
        return Group(list(compress(self.names, mask.tolist())), self.at[mask])
