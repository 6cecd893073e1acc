"""Fit and score of one request over many nodes at once."""

from typing import Final

import numpy as np

from gpushare.arrays import Ints, Mask, Places
from gpushare.ledger.columns import Columns
from gpushare.model.device import Placement
from gpushare.model.request import Request

#: More units than any GPU has: larger requests are compared as this one, so that they fit an int32.
MOST_UNITS: Final = (1 << 31) - 1
MAX_SCORE: Final = 10
#: What a node has left over that does not take the request.
FAR: Final = 1 << 56
_PODS: Final = 1 << 20


def left_over(columns: Columns, request: Request, at: Places | None = None) -> Ints:
    """For each of the columns ``at`` (``None``: all) the MiB that the GPU which its node would choose has left over.

    ``FAR`` where none of its GPUs takes the request.
    """
    asked = min(request.memory_units, MOST_UNITS)
    gpus = _pick(columns.fit_units, at) >= asked
    others = columns.core_pods
    if request.wants_core:
        gpus &= _pick(columns.free_core, at) >= request.core_percent
        others = columns.memory_pods
    gpus &= _pick(others, at) == 0
    total_mib = _pick(columns.total_mib, at)
    free_mib = total_mib - _pick(columns.taken_mib, at)
    left_mib = free_mib - total_mib * asked // np.maximum(_pick(columns.units, at), 1)
    left_mib[~gpus] = FAR
    left: Ints = left_mib.min(axis=0)
    spread = _pick(columns.spread, at) == 1
    if spread.any():
        # The most free, then the fewest pods; argmax takes the lower of equals, as placement.roomiest does.
        wish = free_mib * _PODS - np.minimum(_pick(columns.pods, at), _PODS - 1)
        rows = np.where(gpus, wish, -FAR).argmax(axis=0)
        left = np.where(spread, left_mib[rows, np.arange(left.size)], left)
    return left


def _pick(figures: Ints, at: Places | None) -> Ints:
    return figures if at is None else figures.take(at, axis=-1)


def scores(left: Ints, largest_mib: Ints, policy: Placement) -> Ints:
    """0 to 10 for each node by what ``left_over`` says of it; 0 where the request does not fit.

    In parts of the largest GPU among all nodes that fit (``largest_mib`` is that of each): binpack gives most to the
    least left over, spread to the most. The order of nodes is thus that of the GPUs within a node, also where GPUs
    differ in size.
    """
    fits: Mask = left != FAR
    if not fits.any():
        return np.zeros(left.size, np.int64)
    scale = int(largest_mib[fits].max())
    part = left if policy is Placement.SPREAD else scale - left
    rounded: Ints = (2 * MAX_SCORE * part + scale) // (2 * scale)
    return rounded if fits.all() else np.where(fits, rounded, 0)


def ranks(grown: Ints, left: Ints) -> Ints:
    """0 to 10 for each node: 10 where fragments grow least and, of these, least is left over, one less for each next.

    By rank, not by amount: one node that stands far out must not make all others look alike.
    """
    order = np.lexsort((left, grown))
    by_grown, by_left = grown[order], left[order]
    steps = (by_grown[1:] != by_grown[:-1]) | (by_left[1:] != by_left[:-1])
    found = np.empty(left.size, np.int64)
    found[order] = MAX_SCORE - np.minimum(np.concatenate(([0], steps.cumsum())), MAX_SCORE)[: left.size]
    found[left == FAR] = 0
    return found
