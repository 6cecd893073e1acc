"""Which of many nodes a request should go to: what is left over, or how fragments grow, as 0 to 10."""

import numpy as np

from gpushare.arrays import Ints, Places
from gpushare.ledger import several
from gpushare.ledger.columns import Columns
from gpushare.ledger.fitting import FAR, MAX_SCORE, MOST_UNITS, ranks, scores
from gpushare.ledger.growth import Growth
from gpushare.ledger.kept import LeftOver
from gpushare.ledger.nearness import Nearness
from gpushare.model.device import Placement
from gpushare.model.request import Request


class Scoring:
    """The scores of nodes by ``policy``, from the figures that the ledger keeps."""

    def __init__(
        self, policy: Placement, columns: Columns, left: LeftOver, growth: Growth, near: Nearness
    ) -> None:
        self.policy = policy
        self._columns = columns
        self._left = left
        self._growth = growth
        self._near = near

    def of(self, request: Request, at: Places) -> Ints:
        """0 to 10 for each of the columns ``at`` by the GPUs that it would give; 0 where the request does not fit."""
        if request.is_ordinary:
            return self._by_policy(request, at)
        left = self._left.of(request).take(at)
        near = self._columns.near.take(at)
        least = np.zeros(left.size, np.int64)
        if request.gpu_count > 1 and near.any():
            asked = min(request.memory_units, MOST_UNITS)
            least = self._near.least(near, several.fits(self._columns, request, asked, at), request.gpu_count)
        if request.by_gpu:
            spread = self.policy is Placement.SPREAD
            return ranks(-least, np.where(left == FAR, FAR, -left if spread else left))
        points = self._by_policy(request, at)
        fits = left != FAR
        if not fits.any() or (least[fits] == least[fits][0]).all():
            return points
        # Nearness first: pods of several GPUs have them talk to each other.
        return ranks(-least, np.where(fits, MAX_SCORE - points, FAR))

    def _by_policy(self, request: Request, at: Places) -> Ints:
        if self.policy is Placement.FRAGMENTATION:
            growth = self._growth.of(request)
            return ranks(growth.grown.take(at), growth.left.take(at))
        own = self._columns.by_fragments.take(at) == 1
        left = self._left.of(request).take(at)
        if own.any():
            left = np.where(own, self._growth.of(request).left.take(at), left)
        return scores(left, self._columns.largest_mib.take(at), self.policy)
