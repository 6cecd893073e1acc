"""numpy, imported without its documentation and what only types need; the kinds of arrays that we have, and names in them.

Who imports this before numpy spares a fifth of the time that numpy takes.
"""

import os
from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

from gpushare.process.lazy_import import putting_off

# A second thread for products of large matrices, which we have none of, takes longer to start than all of numpy to import.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
_UNUSED: Final = {
    "numpy._core._add_newdocs": (),
    "numpy._core._add_newdocs_scalars": (),
    "numpy._typing": ("NDArray",),
}
with putting_off(_UNUSED):
    import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.signedinteger[Any]]
    Places = npt.NDArray[np.intp]
    Mask = npt.NDArray[np.bool_]
else:
    Ints = Places = Mask = np.ndarray

#: Names are laid out anew once there is one more for every so many.
_FEW: Final = 8
#: So many names are looked up as quickly as they are recognized.
_RECOGNIZED: Final = 64
#: Lists of names that are remembered: kube-scheduler's own, what a policy leaves of it, what has room of these for each of a few sizes.
_MOST_FOUND: Final = 8


class Index(dict[str, int]):
    """The column of each name, ``absent`` for one that is not known; of thousands at once by ``places``.

    Names come one by one, between all else that is read, so they and their columns lie far apart in memory, and to look up
    thousands of them is to wait for memory. So they are laid next to each other, once there are enough new ones.
    """

    def __init__(self, absent: int) -> None:
        super().__init__()
        self._absent = absent
        self._laid_out = 0

    def places(self, names: Sequence[str]) -> Places:
        """The columns of ``names``."""
        if len(self) > self._laid_out + self._laid_out // _FEW:
            self._lay_out()
        return np.fromiter(map(self.get, names, repeat(self._absent)), np.intp, len(names))

    def _lay_out(self) -> None:
        columns = np.fromiter(self.values(), np.int64, len(self)).tolist()
        fresh = [name[:1] + name[1:] for name in self]
        self.clear()
        self.update(zip(fresh, columns, strict=True))
        self._laid_out = len(self)


class Found:
    """The columns of names in ``index``, remembered for the long lists that were asked for last: mostly the same are asked for again."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._lists: list[tuple[list[str], Places]] = []
        """Those that were asked for last first."""

    def places(self, names: Sequence[str]) -> Places:
        """The columns of ``names``, which nobody may change."""
        if len(names) < _RECOGNIZED:
            return self._index.places(names)
        for place, (known, at) in enumerate(self._lists):
            if known == names:
                self._lists.insert(0, self._lists.pop(place))
                return at
        at = self._index.places(names)
        self.note(list(names), at)
        return at

    def note(self, names: list[str], at: Places) -> None:
        """Remember that ``names``, a list that nobody changes any more, are at ``at``."""
        if len(names) >= _RECOGNIZED:
            self._lists.insert(0, (names, at))
            del self._lists[_MOST_FOUND:]

    def forget(self) -> None:
        """A name has come to ``index``, or has left it."""
        self._lists.clear()
