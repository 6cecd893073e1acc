"""What has been worked out for a request, kept for the next that asks for as much.

Pods come in many copies, and between two of them few nodes change. ``Columns`` notes which; only these are worked
out anew, by the same function as all at first.
"""

from typing import Final

import numpy as np

from gpushare.api.node.device import Placement
from gpushare.api.request.request import Request
from gpushare.ledger.arrays import Ints, Places
from gpushare.ledger.columns import Columns
from gpushare.ledger.fit import multi_gpu
from gpushare.ledger.fit.single_gpu import MOST_UNITS, left_over
from gpushare.ledger.placement.topology_sets import Nearness
from gpushare.ledger.placement.worth import worth_of

#: Requests remembered: at most 32 MB with 5,000 nodes. The one longest not asked for gives way.
MOST_KEPT: Final = 256
#: Above this share of the columns all of them are worked out: picking costs more than working out.
PICKED_OF: Final = 4


class _Kept:
    """``left``, and what the nodes are worth by it, as of the change number ``seen``."""

    __slots__ = ("left", "seen", "worth")

    def __init__(self, left: Ints, worth: Ints, seen: int) -> None:
        self.left = left
        self.worth = worth
        self.seen = seen


class LeftOver:
    """``left_over`` of all columns, and ``worth_of`` by ``policy``, for the requests that were asked for lately."""

    def __init__(self, columns: Columns, near: Nearness, policy: Placement) -> None:
        self._columns = columns
        self._near = near
        self.policy = policy
        self._kept: dict[tuple[int, int, int, bool, bool], _Kept] = {}

    def of(self, request: Request) -> Ints:
        """What is left over for each column, as it is now; whoever asks must not write in it."""
        return self._of(request).left

    def worth(self, request: Request) -> Ints:
        """What each column is worth by that; whoever asks must not write in it."""
        return self._of(request).worth

    def _work_out(self, request: Request, at: Places | None = None) -> tuple[Ints, Ints]:
        columns = self._columns
        if request.is_ordinary:
            left = left_over(columns, request, at)
        else:
            left = multi_gpu.left_over(columns, request, self._near, at)
        return left, worth_of(columns, request, left, self.policy, at)

    def _of(self, request: Request) -> _Kept:
        columns = self._columns
        key = (
            min(request.memory_units, MOST_UNITS),
            request.core_percent,
            request.gpu_count,
            request.whole_device,
            request.by_gpu,
        )
        kept = self._kept.pop(key, None)
        changed = None if kept is None else columns.changed_since(kept.seen)
        if kept is None or changed is None or len(changed) * PICKED_OF > kept.left.size:
            kept = _Kept(*self._work_out(request), columns.changes)
        elif changed:
            at = np.fromiter(changed, np.intp, len(changed))
            kept.left[at], kept.worth[at] = self._work_out(request, at)
            kept.seen = columns.changes
        self._kept[key] = kept  # at the end: the dictionary is in order of use
        if len(self._kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        return kept
