"""Whether a gang's pods would find room together now: they are given it in the ledger, as a plan for the gang would, and it is taken back at once."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from gpushare.api.request.request import Request
from gpushare.scheduler.cache.cache import ClusterCache
from gpushare.scheduler.framework.services import Candidate, PodQuotas, Standing, largest_first, size_of


class Room(NamedTuple):
    """What was found for a pod that is asked about, and others of its gang: for all that it needs, or for how many at most.

    ``given`` says how many units each of them (UIDs) would be given, where there is room for enough.
    """

    enough: bool
    most: int
    given: Mapping[str, int]


class Trial:
    """Tries the pods of ``standing`` for one of them, the first of its candidates, which may have ``nodes``.

    Quotas count where ``by_quotas``.
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
        self._taken: list[str] = []

    def room(self) -> Room:
        """What there is room for now; nobody else looks meanwhile."""
        first, *others = self._standing.candidates
        need = self._standing.need
        by_size = [first, *sorted(others, key=size_of)]
        alike = len({(asked, id(self._nodes_of(uid))) for uid, _, asked in by_size}) == 1
        with self._undone():
            given = self._place(largest_first([first, *others][:need]), need)
            if len(given) < need and len(by_size) > need and not alike:
                given = self._place(by_size, need)
            if len(given) >= need:
                return Room(enough=True, most=need, given=given)
            # In this order all of them may find room that are there; a plan for all looks at the largest first.
            return Room(enough=False, most=len(self._place(by_size, need - 1)), given={})

    def _place(self, wanted: Sequence[Candidate], need: int) -> dict[str, int]:
        """Units that those of ``wanted`` are given that have room one after the other, ``need`` at most; none where the pod itself has none."""
        first = self._standing.candidates[0][0]
        none_for: set[tuple[Request, int]] = set()
        given: dict[str, int] = {}
        try:
            for uid, pod, asked in wanted:
                if len(given) == need:
                    break
                alike = (asked, id(self._nodes_of(uid)))
                if alike not in none_for and self._reserve(uid, pod, asked):
                    held = self._view.ledger.held(uid)
                    assert held is not None
                    given[uid] = sum(share.units for share in held.allocation.gpus)
                elif uid == first:
                    return {}
                elif not self._by_quotas:
                    none_for.add(alike)
            return given
        finally:
            self._give_back()

    def _nodes_of(self, uid: str) -> list[str]:
        return (
            self._standing.offered.get(uid, self._nodes)
            if uid != self._standing.candidates[0][0]
            else self._nodes
        )

    def _reserve(self, uid: str, pod: str, request: Request) -> bool:
        ledger, quotas, nodes = self._view.ledger, self._quotas, self._nodes_of(uid)
        held = ledger.held(uid)
        if held is not None:  # an earlier Binding may still arrive there
            return held.node in nodes
        if self._by_quotas and quotas.refusal(uid):
            return False
        node = ledger.best(request, nodes)
        if node is None:
            return False
        ledger.reserve(uid, pod, request, node)
        self._taken.append(uid)
        if self._by_quotas and quotas.passed(uid):
            ledger.release(self._taken.pop())
            return False
        return True

    def _give_back(self) -> None:
        while self._taken:
            self._view.ledger.release(self._taken.pop())

    @contextmanager
    def _undone(self) -> Iterator[None]:
        """Nobody is told of what is chosen within, nor of what quotas count of it."""
        ledger, quotas = self._view.ledger, self._quotas
        # Room that others make for the gang by their end is its own.
        lifted = ledger.nominations.suspend(self._standing.members)
        with ledger.gpus_chosen.muted(), quotas.changed.muted():
            try:
                yield
            finally:
                self._give_back()
                ledger.nominations.restore(lifted)
