"""What a node is worth to a request by ``binpack`` and ``spread``: one number, least first."""

import numpy as np

from gpushare.arrays import Ints, Places
from gpushare.ledger.columns import Columns
from gpushare.ledger.fitting import FAR, MOST_LEFT, PODS
from gpushare.model.device import Placement
from gpushare.model.request import Request


def worth_of(
    columns: Columns, request: Request, left: Ints, policy: Placement, at: Places | None = None
) -> Ints:
    """For the columns ``at`` (``None``: all) of whose GPUs so much would be ``left`` over; ``FAR`` where the request does not fit.

    First, for memory alone, whether it closes a node to pods with compute that takes both as yet; then what is left over; then,
    by ``spread``, how many pods the node has. Not so by ``binpack``: gathered on few nodes they use up processors.
    """

    def pick(figures: Ints) -> Ints:
        return figures if at is None else figures.take(at)

    spreads = policy is Placement.SPREAD
    if request.by_gpu:
        return np.where(left == FAR, FAR, MOST_LEFT - left) if spreads else left
    memory_pods = pick(columns.memory_pods)
    worth: Ints = MOST_LEFT - left if spreads else left
    if not request.wants_core:
        worth = worth + MOST_LEFT * 2 * ((pick(columns.no_core) == 0) & (memory_pods == 0))
    if spreads:
        worth = worth * PODS + np.minimum(memory_pods + pick(columns.core_pods), PODS - 1)
    return np.where(left == FAR, FAR, worth)
