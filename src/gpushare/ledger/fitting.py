"""Fit and score of one request over many nodes at once."""

from typing import Final

import numpy as np

from gpushare.ledger.columns import Columns, Mask, Places
from gpushare.model.device import Placement
from gpushare.model.request import Request

#: More units than any GPU has: larger requests are compared as this one, so that they fit an int32.
MOST_UNITS: Final = (1 << 31) - 1
MAX_SCORE: Final = 10
_FAR: Final = 1 << 56
_PODS: Final = 1 << 20


def fitting(columns: Columns, request: Request) -> Mask:
    """For each column whether one of its GPUs takes the whole request: (width,)."""
    width = columns.width
    gpus = columns.fit_units[:, :width] >= min(request.memory_units, MOST_UNITS)
    others = columns.core_pods
    if request.wants_core:
        gpus &= columns.free_core[:, :width] >= request.core_percent
        others = columns.memory_pods
    fits: Mask = gpus.any(axis=0) & (others[:width] == 0)
    return fits


def scores(columns: Columns, request: Request, at: Places, policy: Placement) -> list[int]:
    """0 to 10 for each of the columns ``at``; 0 where the request does not fit.

    By what the GPU that the node would choose has left over, in parts of the largest GPU among all
    nodes that fit: binpack gives most to the least left over, spread to the most. The order of nodes is
    thus that of the GPUs within a node, also where GPUs differ in size.
    """
    asked = min(request.memory_units, MOST_UNITS)
    gpus = columns.fit_units.take(at, axis=1) >= asked
    others = columns.core_pods
    if request.wants_core:
        gpus &= columns.free_core.take(at, axis=1) >= request.core_percent
        others = columns.memory_pods
    fits = gpus.any(axis=0) & (others[at] == 0)
    if not fits.any():
        return [0] * len(at)
    total_mib = columns.total_mib.take(at, axis=1)
    free_mib = total_mib - columns.used_mib.take(at, axis=1)
    left_mib = free_mib - total_mib * asked // np.maximum(columns.units.take(at, axis=1), 1)
    left_mib[~gpus] = _FAR
    left = left_mib.min(axis=0)
    spread = columns.spread[at] == 1
    if spread.any():
        # The most free, then the fewest pods; argmax takes the lower of equals, as placement.roomiest does.
        wish = free_mib * _PODS - np.minimum(columns.pods.take(at, axis=1), _PODS - 1)
        rows = np.where(gpus, wish, -_FAR).argmax(axis=0)
        left = np.where(spread, left_mib[rows, np.arange(len(at))], left)
    scale = int(total_mib.max(axis=0)[fits].max())
    part = left if policy is Placement.SPREAD else scale - left
    rounded = (2 * MAX_SCORE * part + scale) // (2 * scale)
    result: list[int] = np.where(fits, rounded, 0).tolist()
    return result
