"""Whether a gang's pods would fit together now: reserves room in the ledger as a plan for the gang would, and releases it at once."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from gpushare.api.request.request import Request
from gpushare.scheduler.cache.cache import ClusterCache
from gpushare.scheduler.framework.services import Candidate, PodQuotas, Standing, largest_first, size_of


class Room(NamedTuple):
    """Room for a pod and the other pods of its gang: whether it is enough for all pods needed, and for how many at most.

    ``units_by_pod``: the units that each pod (UID) would be allocated, if there is room for enough pods.
    """

    enough: bool
    most: int
    units_by_pod: Mapping[str, int]


class Trial:
    """Tries to place the candidates of ``standing``. The first candidate is the pod in question, which may have ``nodes``.

    ``by_quotas``: whether elastic quotas count.
    """

    def __init__(
        self,
        view: ClusterCache,
        quotas: PodQuotas,
        standing: Standing,
        nodes: list[str],
        *,
        by_quotas: bool = False,
    ) -> None:
        self._view, self._quotas, self._standing, self._nodes = view, quotas, standing, nodes
        self._by_quotas = by_quotas
        self._reserved: list[str] = []

    def room(self) -> Room:
        """The current room. Does not await, so no other task sees the trial reservations."""
        first, *others = self._standing.candidates
        need = self._standing.need
        by_size = [first, *sorted(others, key=size_of)]
        all_alike = len({(request, id(self._nodes_of(uid))) for uid, _, request in by_size}) == 1
        with self._rolled_back():
            units_by_pod = self._place(largest_first([first, *others][:need]), need)
            if len(units_by_pod) < need and len(by_size) > need and not all_alike:
                units_by_pod = self._place(by_size, need)
            if len(units_by_pod) >= need:
                return Room(enough=True, most=need, units_by_pod=units_by_pod)
            # Smallest first places the most pods; a plan for the whole gang places the largest first.
            return Room(enough=False, most=len(self._place(by_size, need - 1)), units_by_pod={})

    def _place(self, candidates: Sequence[Candidate], need: int) -> dict[str, int]:
        """Place ``candidates`` in order, at most ``need``. Returns units by UID; empty if the pod in question has no room itself."""
        first = self._standing.candidates[0][0]
        refused_kinds: set[tuple[Request, int]] = set()
        units_by_pod: dict[str, int] = {}
        try:
            for uid, pod, request in candidates:
                if len(units_by_pod) == need:
                    break
                kind = (request, id(self._nodes_of(uid)))
                if kind not in refused_kinds and self._reserve(uid, pod, request):
                    held = self._view.ledger.held(uid)
                    assert held is not None
                    units_by_pod[uid] = sum(share.units for share in held.allocation.gpus)
                elif uid == first:
                    return {}
                elif not self._by_quotas:
                    refused_kinds.add(kind)
            return units_by_pod
        finally:
            self._release_all()

    def _nodes_of(self, uid: str) -> list[str]:
        return (
            self._standing.offered.get(uid, self._nodes)
            if uid != self._standing.candidates[0][0]
            else self._nodes
        )

    def _reserve(self, uid: str, pod: str, request: Request) -> bool:
        ledger, quotas, nodes = self._view.ledger, self._quotas, self._nodes_of(uid)
        held = ledger.held(uid)
        if held is not None:  # an earlier Binding to this node may still take effect
            return held.node in nodes
        if self._by_quotas and quotas.refusal(uid):
            return False
        node = ledger.best(request, nodes)
        if node is None:
            return False
        ledger.reserve(uid, pod, request, node)
        self._reserved.append(uid)
        if self._by_quotas and quotas.passed(uid):
            ledger.release(self._reserved.pop())
            return False
        return True

    def _release_all(self) -> None:
        while self._reserved:
            self._view.ledger.release(self._reserved.pop())

    @contextmanager
    def _rolled_back(self) -> Iterator[None]:
        """Mute the ledger's and the quotas' events within the block, and release everything afterwards."""
        ledger, quotas = self._view.ledger, self._quotas
        # Room that victims make for the gang counts as the gang's own.
        lifted = ledger.nominations.suspend(self._standing.members)
        with ledger.gpus_chosen.muted(), quotas.changed.muted():
            try:
                yield
            finally:
                self._release_all()
                ledger.nominations.restore(lifted)
