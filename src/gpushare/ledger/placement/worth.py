"""The worth of a node for a request, by what it would have left over: one number, least is best."""

from typing import Final

import numpy as np

from gpushare.api.node.device import Placement
from gpushare.api.request.request import Request
from gpushare.ledger.arrays import Ints, Places
from gpushare.ledger.columns import Columns
from gpushare.ledger.fit.single_gpu import FAR
from gpushare.ledger.placement.policies import MOST_LEFT, PODS, POLICIES

#: Above any worth by a policy.
_CLOSES: Final = 2 * MOST_LEFT * PODS


def worth_of(
    columns: Columns, request: Request, left: Ints, policy: Placement, at: Places | None = None
) -> Ints:
    """For the columns ``at`` (``None``: all), by the MiB ``left`` over on their GPUs; ``FAR`` if the request does not fit.

    For memory alone, nodes that would be closed to pods with compute come last; then the policy decides.
    """

    def pick(figures: Ints) -> Ints:
        return figures if at is None else figures.take(at)

    worth_by = POLICIES[policy].worth
    if request.by_gpu:
        return left if worth_by is None else np.where(left == FAR, FAR, worth_by(left, np.zeros_like(left)))
    memory_pods = pick(columns.memory_pods)
    worth = left if worth_by is None else worth_by(left, memory_pods + pick(columns.core_pods))
    if not request.wants_core:
        worth = worth + _CLOSES * ((pick(columns.no_core) == 0) & (memory_pods == 0))
    return np.where(left == FAR, FAR, worth)
