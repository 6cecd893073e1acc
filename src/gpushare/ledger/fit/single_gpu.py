"""Which of many nodes one request fits, and what would be left over on each."""

from typing import Final

import numpy as np

from gpushare.api.request.request import Request
from gpushare.ledger.arrays import Ints, Places
from gpushare.ledger.columns import Columns
from gpushare.ledger.placement.policies import with_wishes

#: Above the units of any GPU. Larger requests are compared as this one, so that they fit an int32.
MOST_UNITS: Final = (1 << 31) - 1
#: Stands for what is left over on a node that does not take the request.
FAR: Final = 1 << 56


def left_over(columns: Columns, request: Request, at: Places | None = None) -> Ints:
    """For each of the columns ``at`` (``None``: all) the MiB left over on the GPU that its node would choose.

    ``FAR`` if none of its GPUs takes the request.
    """
    asked = min(request.memory_units, MOST_UNITS)
    gpus = _pick(columns.fit_units, at) >= asked
    if request.selection is not None:
        gpus &= columns.allowed(request.selection, at)
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
    for of_policy, wish in with_wishes(columns.placements(request, at)):
        # argmin takes the lower index of equals, as placement.choose does. (The ranks of GPUs that do not fit are meaningless.)
        rows = np.where(gpus, wish(left_mib, _pick(columns.pods, at)), FAR).argmin(axis=0)
        left = np.where(of_policy, left_mib[rows, np.arange(left.size)], left)
    return left


def _pick(figures: Ints, at: Places | None) -> Ints:
    return figures if at is None else figures.take(at, axis=-1)
