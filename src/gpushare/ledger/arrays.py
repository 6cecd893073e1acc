"""numpy, imported without its documentation and its typing helpers; the array types in use; lookups of columns by name.

Importing this module before numpy saves a fifth of numpy's import time.
"""

import os
from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

from gpushare.process.lazy_import import deferring

# The second thread serves products of large matrices, which are not used here. It takes longer to start than the rest of numpy to import.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
_UNUSED: Final = {
    "numpy._core._add_newdocs": (),
    "numpy._core._add_newdocs_scalars": (),
    "numpy._typing": ("NDArray",),
}
with deferring(_UNUSED):
    import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.signedinteger[Any]]
    Places = npt.NDArray[np.intp]
    Mask = npt.NDArray[np.bool_]
else:
    Ints = Places = Mask = np.ndarray

#: An index is laid out again once it has grown by this fraction (one new name per so many).
_GROWTH_DIVISOR: Final = 8
#: Lists with at least this many names are compared with the remembered ones; shorter lists are looked up directly.
_MIN_REMEMBERED_NAMES: Final = 64
#: Remembered lists: kube-scheduler's own, what a policy leaves of it, and the nodes with room of these for each of a few sizes.
_MAX_REMEMBERED_LISTS: Final = 8


class Index(dict[str, int]):
    """The column of each name; ``absent`` for an unknown name. ``places`` looks up thousands at once.

    Names arrive one by one while other data is read, so they and their columns are scattered in memory, and looking up
    thousands of them means waiting for memory. They are laid out contiguously whenever enough new ones have arrived.
    """

    def __init__(self, absent: int) -> None:
        super().__init__()
        self._absent = absent
        self._laid_out = 0

    def places(self, names: Sequence[str]) -> Places:
        """The columns of ``names``."""
        if len(self) > self._laid_out + self._laid_out // _GROWTH_DIVISOR:
            self._lay_out()
        return np.fromiter(map(self.get, names, repeat(self._absent)), np.intp, len(names))

    def _lay_out(self) -> None:
        columns = np.fromiter(self.values(), np.int64, len(self)).tolist()
        copies = [name[:1] + name[1:] for name in self]
        self.clear()
        self.update(zip(copies, columns, strict=True))
        self._laid_out = len(self)


class ColumnCache:
    """The columns of names in ``index``. Remembers long lists of names, because most are requested repeatedly."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._lists: list[tuple[list[str], Places]] = []
        """Most recently requested first."""

    def places(self, names: Sequence[str]) -> Places:
        """The columns of ``names``; the caller must not modify the result."""
        if len(names) < _MIN_REMEMBERED_NAMES:
            return self._index.places(names)
        for place, (known, at) in enumerate(self._lists):
            if known == names:
                self._lists.insert(0, self._lists.pop(place))
                return at
        at = self._index.places(names)
        self.remember(list(names), at)
        return at

    def remember(self, names: list[str], at: Places) -> None:
        """Remember that ``names``, a list that is no longer modified, has the columns ``at``."""
        if len(names) >= _MIN_REMEMBERED_NAMES:
            self._lists.insert(0, (names, at))
            del self._lists[_MAX_REMEMBERED_LISTS:]

    def forget(self) -> None:
        """Drop all lists, because a name was added to ``index`` or removed."""
        self._lists.clear()
