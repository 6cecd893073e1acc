"""Whose end, or move to another node, would make room for a request."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain, repeat

import numpy as np

from gpushare.api.request.request import Request
from gpushare.ledger.books import Books
from gpushare.ledger.fit.without_pods import fits_without
from gpushare.ledger.preemption.vacating import (
    MayMoveFn,
    WantedGpusFn,
    everywhere,
    host_of,
    roomiest,
    scattered,
)
from gpushare.ledger.preemption.victims import Plan, RankFn, first_plan
from gpushare.ledger.priorities import LEAVING
from gpushare.ledger.quota.reclaim import NoRule, Rule
from gpushare.planning.defragmentation import Host


class Evictions:
    """Answers from ``books``; changes nothing."""

    def __init__(self, books: Books) -> None:
        self._books = books

    def plan(
        self,
        request: Request,
        nodes: Sequence[str],
        rank: RankFn,
        *,
        forced: Collection[str] = (),
        rule: Rule | None = None,
        priority: int | Mapping[str, int] | None = None,
    ) -> Plan | None:
        """Whose end on which of ``nodes`` would make room at the least cost; ``None`` where nothing helps.

        Quicker with the ``priority`` that ``rank`` goes by, as ``stages`` takes it.
        """
        rule = rule or NoRule()
        some: Iterable[Iterable[str]] = [nodes]
        if priority is not None:
            some = self.stages(request, nodes, priority)
        if rule.short:
            # Somebody has to go on any node: where there is room already it does not cost less.
            some = [chain.from_iterable(some)]
        books = (filter(None, map(self._books.nodes.get, names)) for names in some)
        return first_plan(books, self._books.held, request, rank, forced=forced, rule=rule)

    def stages(
        self, request: Request, nodes: Sequence[str], priority: int | Mapping[str, int]
    ) -> Iterable[Iterable[str]]:
        """Where ends of pods below ``priority`` can be enough, stage by stage; those of the least important pods first.

        ``priority`` may be another for each node; nobody goes where it names none, but who leaves already.
        """
        at = self._books.found.places(nodes)
        if isinstance(priority, int):
            found = self._books.columns.where_others_could_go(request, priority, at)
        else:
            limits = np.fromiter(map(priority.get, nodes, repeat(LEAVING + 1)), np.int64, len(nodes))
            found = self._books.columns.where_others_could_go(request, limits, at)
        return [nodes] if found is None else (map(nodes.__getitem__, some.tolist()) for some in found)

    def fits_without(self, request: Request, node: str, uids: Iterable[str]) -> bool:
        """Whether the node would take ``request`` if the pods ``uids``, which hold something there, did not."""
        return fits_without(self._books.nodes[node], map(self._books.held, uids), request)

    def scattered(self, request: Request, nodes: Sequence[str]) -> list[str]:
        """Those of ``nodes`` that have room for ``request`` on all GPUs together, those that lack least on one first."""
        return [
            nodes[place]
            for place in scattered(self._books.columns, request, self._books.found.places(nodes)).tolist()
        ]

    def roomiest(self) -> list[str]:
        """The nodes of which a GPU has the most free, as many as a look at moves needs."""
        names = list(self._books.column_of)
        return [
            names[place] for place in roomiest(self._books.columns, self._books.found.places(names)).tolist()
        ]

    def host(self, node: str, may_move: MayMoveFn, wanted: WantedGpusFn = everywhere) -> Host | None:
        """The node as the planner of moves takes it; ``None`` where it is not known or takes nothing new."""
        book = self._books.nodes.get(node)
        return None if book is None else host_of(book, self._books.held, may_move, wanted)
