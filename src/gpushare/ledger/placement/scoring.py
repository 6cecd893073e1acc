"""Scores of nodes for a request, from 0 to 10."""

from typing import Final

import numpy as np

from gpushare.api.node.device import Placement
from gpushare.api.request.request import Request
from gpushare.ledger.arrays import Ints, Places
from gpushare.ledger.columns import Columns
from gpushare.ledger.fit import multi_gpu
from gpushare.ledger.fit.single_gpu import FAR
from gpushare.ledger.placement.fragmentation.growth import Growth
from gpushare.ledger.placement.policies import number_of
from gpushare.ledger.placement.ranks import first_of_best, ranks, ranks_in_turn
from gpushare.ledger.placement.score_cache import LeftOver
from gpushare.ledger.placement.topology_sets import Nearness
from gpushare.ledger.placement.worth import worth_of

_FRAGMENTATION: Final = number_of(Placement.FRAGMENTATION)
_NO_PLACES: Final[Places] = np.zeros(0, np.intp)


class Scoring:
    """Scores nodes by the request's policy or that of ``left``, from the figures of the ledger."""

    def __init__(self, columns: Columns, left: LeftOver, growth: Growth, near: Nearness) -> None:
        self._columns = columns
        self._left = left
        self._growth = growth
        self._near = near

    def of(self, request: Request, at: Places) -> Ints:
        """0 to 10 for each of the columns ``at``, by the GPUs that it would allocate; 0 if the request does not fit."""
        worths = self._sort_keys(request, at)
        return ranks(*worths) if len(worths) == 1 else ranks_in_turn(*worths)

    def best(self, request: Request, at: Places) -> int | None:
        """The position in ``at`` of the first column with the highest score; ``None`` if the request fits nowhere."""
        worths = self._sort_keys(request, at)
        place = first_of_best(*worths) if at.size else 0
        return place if at.size and worths[-1][place] != FAR else None

    def precompute(self, request: Request) -> None:
        """Compute the worth of all columns, so that it is cached."""
        self._worths(request, _NO_PLACES)

    def _sort_keys(self, request: Request, at: Places) -> tuple[Ints, ...]:
        """The sort keys of each of the columns ``at``, least is best; the first array counts before the second."""
        near = self._columns.near.take(at) if request.gpu_count > 1 else self._columns.near[:0]
        if not near.any():
            return self._worths(request, at)
        asked = request.memory_units
        gpus = multi_gpu.fits(self._columns, request, asked, at)
        # Nearness first: the GPUs of one pod communicate.
        return -self._near.least(near, gpus, request.gpu_count), *self._worths(request, at)

    def _worths(self, request: Request, at: Places) -> tuple[Ints, ...]:
        """The worth of each of the columns ``at``, least is best; the first array counts before the second."""
        policy = request.node_placement or self._left.policy
        if policy is Placement.FRAGMENTATION and not request.by_gpu:
            growth = self._growth.of(request)
            return growth.grown.take(at), growth.left.take(at)
        # Several GPUs are chosen as by binpack.
        if request.gpu_count == 1 and not request.by_gpu and self._some_by_fragments(request):
            own = self._columns.placements(request, at) == _FRAGMENTATION
            left = np.where(own, self._growth.of(request).left.take(at), self._left.of(request).take(at))
            return (worth_of(self._columns, request, left, policy, at),)
        return (self._left.worth(request).take(at),)

    def _some_by_fragments(self, request: Request) -> bool:
        """Whether some node may choose GPUs for ``request`` by fragmentation."""
        if request.gpu_placement is None:
            return bool(self._columns.by_fragments.any())
        return request.gpu_placement is Placement.FRAGMENTATION
