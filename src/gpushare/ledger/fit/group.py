"""Nodes that are examined together and split by the reason that applies to each."""

from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from typing import NamedTuple, TypeVar

from gpushare.ledger.arrays import Mask, Places

T = TypeVar("T")


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

    def texts(self, figures: Sequence[T], write: Callable[[T], str]) -> Iterator[tuple[str, str]]:
        """Each node with the text for its figure; ``write`` is called once for all nodes with the same."""
        text_of = {figure: write(figure) for figure in set(figures)}
        return zip(self.names, map(text_of.__getitem__, figures), strict=True)

    def _only(self, mask: Mask) -> "Group":
        return Group(list(compress(self.names, mask.tolist())), self.at[mask])
