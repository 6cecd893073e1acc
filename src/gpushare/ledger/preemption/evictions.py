"""Which evictions, or moves to another node, would make room for a request."""

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
    """Computes plans from ``books`` without changing them."""

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
        """The evictions on one of ``nodes`` that make room at the least cost; ``None`` if nothing helps.

        Faster with ``priority``, the limit that ``rank`` applies; its form is that of ``stages``.
        """
        rule = rule or NoRule()
        stages: Iterable[Iterable[str]] = [nodes]
        if priority is not None:
            stages = self.stages(request, nodes, priority)
        if rule.short:
            # An eviction is needed on any node, so one that has room already is not cheaper.
            stages = [chain.from_iterable(stages)]
        books = (filter(None, map(self._books.nodes.get, names)) for names in stages)
        return first_plan(books, self._books.held, request, rank, forced=forced, rule=rule)

    def stages(
        self, request: Request, nodes: Sequence[str], priority: int | Mapping[str, int]
    ) -> Iterable[Iterable[str]]:
        """Nodes where evicting pods below ``priority`` can be enough, stage by stage; those with the least important pods first.

        ``priority`` may differ by node. On a node that it does not name only terminating pods count as gone.
        """
        at = self._books.column_cache.places(nodes)
        if isinstance(priority, int):
            stages = self._books.columns.eviction_stages(request, priority, at)
        else:
            limits = np.fromiter(map(priority.get, nodes, repeat(LEAVING + 1)), np.int64, len(nodes))
            stages = self._books.columns.eviction_stages(request, limits, at)
        return [nodes] if stages is None else (map(nodes.__getitem__, stage.tolist()) for stage in stages)

    def fits_without(self, request: Request, node: str, uids: Iterable[str]) -> bool:
        """Whether the node would take ``request`` without the pods ``uids``, which hold something there."""
        return fits_without(self._books.nodes[node], map(self._books.held, uids), request)

    def scattered(self, request: Request, nodes: Sequence[str]) -> list[str]:
        """Those of ``nodes`` that have room for ``request`` on all GPUs together, the node that lacks least on one GPU first."""
        return [
            nodes[place]
            for place in scattered(
                self._books.columns, request, self._books.column_cache.places(nodes)
            ).tolist()
        ]

    def roomiest(self) -> list[str]:
        """The nodes with the most free on one GPU, as many as planning of moves needs."""
        names = list(self._books.column_of)
        return [
            names[place]
            for place in roomiest(self._books.columns, self._books.column_cache.places(names)).tolist()
        ]

    def host(self, node: str, may_move: MayMoveFn, wanted: WantedGpusFn = everywhere) -> Host | None:
        """The node in the form that the planner of moves takes; ``None`` if it is unknown or takes nothing new."""
        book = self._books.nodes.get(node)
        return None if book is None else host_of(book, self._books.held, may_move, wanted)
