"""What nodes can still take: the free memory that would be allocated if the expected requests were offered to them.

Free memory is worth what later pods can make of it. The value of a node in a state (what is free on each GPU, free processors) is the
memory that it allocates when requests of the mix are offered to it, one after the other, and each that fits is placed on the
tightest GPUs. ``Outlook`` draws the sequences of offers, the same for all states, so that values can be compared.

Values are whole numbers: units of memory, summed over the sequences. They are computed in C (``lookahead/lookahead.c``), by the
library beside this module, else by ``rollout``.
"""

import ctypes
from functools import cache
from typing import Final, NamedTuple

import numpy as np

from gpushare.ledger.arrays import Ints, Mask
from gpushare.ledger.placement.fragmentation.outlook import OFFERS, SEQUENCES, Outlook
from gpushare.ledger.placement.fragmentation.rollout import Rollout
from gpushare.ledger.placement.fragmentation.state import State

#: Bounds the work of a call: a pod that is tried takes a step, a value from the table ``rollout._TABLE_STEPS``. About 1 ms, and 15 ms in Python.
STEPS: Final = 1 << 15
PYTHON_STEPS: Final = 1 << 12
#: Values in the table of the C library.
_SLOTS: Final = 1 << 16


class Values(NamedTuple):
    """Of the first nodes, as many as there were steps for: their value now, and that with each GPU replaced; the steps that are left."""

    now: Ints
    after: Ints
    steps: int


class Lookahead:
    """Values by one ``outlook``."""

    def __init__(self, outlook: Outlook) -> None:
        library = _library()
        self._values = Rollout(outlook) if library is None else _InC(library, outlook)
        self.steps = PYTHON_STEPS if library is None else STEPS

    def values(self, now: State, after: State, replaced: Mask, steps: int) -> Values:
        """The value of nodes as they are ``now``, and for each GPU in ``replaced`` if it, and its node's lines, become as in ``after``.

        Stops once the ``steps`` are spent.
        """
        rows, count = replaced.shape
        values, values_after = np.zeros(count, np.int64), np.zeros((rows, count), np.int64)
        known, left = self._values.values(now, after, replaced, steps, values, values_after)
        return Values(values[:known], values_after[:, :known], left)


class _InC:
    """The C library with an outlook and a table of values."""

    def __init__(self, library: ctypes.CDLL, outlook: Outlook) -> None:
        self._call = library.lookahead_values
        kinds = np.array(outlook.kinds, np.int64)
        offers = np.array(outlook.offers, np.uint16)
        self._arrays = kinds, offers, np.zeros(_SLOTS, np.uint64), np.zeros(_SLOTS, np.int64)
        sequences = SEQUENCES if outlook.kinds else 0
        pointers = (array.ctypes.data for array in self._arrays)
        self._plan = _Plan(*pointers, len(outlook.kinds), sequences, OFFERS, _SLOTS)

    def values(
        self, now: State, after: State, replaced: Mask, steps: int, values: Ints, values_after: Ints
    ) -> tuple[int, int]:
        now_arrays, after_arrays = (
            [np.ascontiguousarray(figures, np.int64) for figures in state] for state in (now, after)
        )
        gpus = np.ascontiguousarray(replaced)
        left = ctypes.c_int64(steps)
        rows, count = gpus.shape
        known: int = self._call(
            ctypes.byref(self._plan),
            ctypes.byref(_Nodes(*(array.ctypes.data for array in now_arrays))),
            ctypes.byref(_Nodes(*(array.ctypes.data for array in after_arrays))),
            ctypes.c_void_p(gpus.ctypes.data),
            ctypes.c_int64(rows),
            ctypes.c_int64(count),
            ctypes.byref(left),
            ctypes.c_void_p(values.ctypes.data),
            ctypes.c_void_p(values_after.ctypes.data),
        )
        return known, left.value


class _Plan(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("kinds", "offers", "keys", "values")),
        *((name, ctypes.c_int64) for name in ("kind_count", "sequences", "length", "slots")),
    )


class _Nodes(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_void_p) for name in State._fields)


@cache
def _library() -> ctypes.CDLL | None:
    """The library; ``None`` if it was not built for this machine."""
    try:
        library = ctypes.CDLL(f"{__file__.rpartition('/')[0]}/liblookahead.so")
    except OSError:
        return None
    library.lookahead_values.restype = ctypes.c_int64
    return library
