"""Caches what was computed for a request, for the next identical request.

Pods come in many copies, and few nodes change between two of them. ``Columns`` records which ones; only these are
computed again, by the same function.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from gpushare.api.node.device import Placement
from gpushare.api.request.gpu_selection import GpuSelection
from gpushare.api.request.request import Request
from gpushare.ledger.arrays import Ints, Places
from gpushare.ledger.columns import Columns
from gpushare.ledger.fit import multi_gpu
from gpushare.ledger.fit.single_gpu import left_over
from gpushare.ledger.placement.topology_sets import Nearness
from gpushare.ledger.placement.worth import worth_of

#: Cached requests: at most 32 MB with 5,000 nodes. The least recently used one is dropped.
MOST_KEPT: Final = 256
#: If more than this fraction of the columns changed all are computed: selecting columns costs more than computing them.
PICKED_OF: Final = 4


_Key = tuple[int, int, int, bool, bool, GpuSelection | None, Placement | None, Placement | None]
"""Requests with the same key fit alike and rank nodes alike."""


@dataclass(slots=True, eq=False)
class _Cached:
    """``left``, and the worth of nodes by it, as of the change number ``seen``."""

    left: Ints
    worth: Ints
    seen: int


class LeftOver:
    """``left_over`` of all columns, and ``worth_of`` by ``policy``, for recent requests."""

    def __init__(self, columns: Columns, near: Nearness, policy: Placement) -> None:
        self._columns = columns
        self._near = near
        self.policy = policy
        self._cache: dict[_Key, _Cached] = {}

    def of(self, request: Request) -> Ints:
        """The current left-over MiB of each column; the caller must not modify the result."""
        return self._of(request).left

    def worth(self, request: Request) -> Ints:
        """The worth of each column by that; the caller must not modify the result."""
        return self._of(request).worth

    def _compute(self, request: Request, at: Places | None = None) -> tuple[Ints, Ints]:
        columns = self._columns
        if request.is_ordinary:
            left = left_over(columns, request, at)
        else:
            left = multi_gpu.left_over(columns, request, self._near, at)
        return left, worth_of(columns, request, left, request.node_placement or self.policy, at)

    def _of(self, request: Request) -> _Cached:
        columns = self._columns
        key = (
            request.memory_units,
            request.core_percent,
            request.gpu_count,
            request.whole_device,
            request.by_gpu,
            request.selection,
            request.gpu_placement,
            request.node_placement,
        )
        cached = self._cache.pop(key, None)
        changed = None if cached is None else columns.changed_since(cached.seen)
        if cached is None or changed is None or len(changed) * PICKED_OF > cached.left.size:
            cached = _Cached(*self._compute(request), columns.changes)
        elif changed:
            at = np.fromiter(changed, np.intp, len(changed))
            cached.left[at], cached.worth[at] = self._compute(request, at)
            cached.seen = columns.changes
        self._cache[key] = cached  # at the end: the dictionary is in order of use
        if len(self._cache) > MOST_KEPT:
            del self._cache[next(iter(self._cache))]
        return cached
