"""The ledger: takes events from the API server and reservations, answers with decisions and figures.

Each change updates the books of one node and a few cells of the arrays, whatever the size of the cluster (``books``). The
allocation of a pod is stored as recorded, by GPU UUID, even if node or GPU is missing: the order of events does not matter.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from typing import Self

import numpy as np

from gpushare.api.allocation.allocation import Allocation
from gpushare.api.node.device import NodeDevices, Placement
from gpushare.api.request.request import Request
from gpushare.ledger.arrays import Mask, Places
from gpushare.ledger.books import Books
from gpushare.ledger.columns import Columns
from gpushare.ledger.errors import Refused
from gpushare.ledger.fit.single_gpu import FAR, most_pods
from gpushare.ledger.node_book import NodeBook
from gpushare.ledger.nominations import Nominations
from gpushare.ledger.placement.fragmentation.growth import Growth
from gpushare.ledger.placement.policies import Candidate, chosen, placement_for
from gpushare.ledger.placement.ranks import MAX_SCORE
from gpushare.ledger.placement.score_cache import LeftOver
from gpushare.ledger.placement.scoring import Scoring
from gpushare.ledger.preemption.evictions import Evictions
from gpushare.ledger.results import Held, NodeUsage, Totals, Verdict
from gpushare.ledger.usage import usage_of
from gpushare.process.event import Event


class Ledger:
    """The allocations of all pods. Not thread-safe.

    ``node_policy`` says which nodes score highest: those with the least left over (binpack), with the most (spread), or those
    where fragmentation grows least (fragmentation). On a node its own placement policy decides. Requests may have other policies.
    """

    def __init__(self, *, node_policy: Placement = Placement.BINPACK) -> None:
        self._held: dict[str, Held] = {}
        self._reserved = 0
        self._books = books = Books(self._held.__getitem__)
        self._left = LeftOver(books.columns, books.near, node_policy)
        self._growth = Growth(books.columns, books.near)
        self.fragments_mib = self._growth.fragments_mib
        """MiB of free memory that the expected requests could not use on average (``ledger.placement.fragmentation.measure``)."""
        self._scoring = Scoring(books.columns, self._left, self._growth, books.near)
        self.set_free_cpu = books.set_free_cpu
        self.allocation_changed: Event[str] = Event()
        """Called with the UID of a pod whose allocation or nomination begins, changes or ends."""
        self.nominations = Nominations(books.nodes, books.refresh, books.recount, self.allocation_changed)
        """Capacity that is reserved for pods until their victims have ended."""
        self.evictions = Evictions(books)
        """Which evictions or moves would make room."""
        self.gpus_chosen: Event[str, str, list[Candidate]] = Event()
        """Called when GPUs were chosen, with UID, node and the candidates."""

    @classmethod
    def of(cls, nodes: Iterable[NodeDevices]) -> Self:
        """A ledger of ``nodes`` without pods."""
        ledger = cls()
        for node in nodes:
            ledger.set_node(node)
        return ledger

    # --- nodes ------------------------------------------------------------------------------

    def set_node(self, node: NodeDevices) -> None:
        """Set the node's current state. Allocations of its pods stay, whatever has changed."""
        before = self.node(node.name)
        if before != node:
            self.nominations.remove_changed(node.name, before, node)
            self._books.set_node(node)

    def remove_node(self, name: str) -> None:
        """Forget the node. Allocations of its pods stay until they are released, in case the node comes back."""
        book = self._books.nodes.get(name)
        if book is not None and book.devices is not None:
            self.nominations.remove_changed(name, book.devices, None)
            self._books.remove_node(book)

    def node(self, name: str) -> NodeDevices | None:
        """The node as last set; ``None`` if unknown."""
        book = self._books.nodes.get(name)
        return None if book is None else book.devices

    def node_names(self) -> list[str]:
        """Every known node."""
        return list(self._books.column_of)

    # --- what pods hold -----------------------------------------------------------------------

    def reserve(self, uid: str, pod: str, request: Request, node: str) -> Allocation:
        """Allocate ``request`` on the GPUs of ``node`` that its placement policy prefers, until confirmed or released.

        The same UID and node return the same allocation; a reservation on another node is moved. Raises ``Refused``, without
        any change, if the request does not fit or the pod is bound to another node.
        """
        held = self._held.get(uid)
        if held is not None:
            if held.node == node:
                return held.allocation
            if held.confirmed:
                raise Refused(node, f"pod {pod} already holds its share on node {held.node}", hopeless=True)
        book = self._books.nodes.get(node)
        if book is None or book.devices is None:
            raise self._refused(request, node)
        candidates = self._candidates(book, book.devices, request)
        allocation = self.choose(book.devices, candidates, request)
        if allocation is None:
            raise self._refused(request, node)
        self._put(Held(uid, pod, node, allocation, confirmed=False))
        self.gpus_chosen(uid, node, candidates)
        return allocation

    def choose(self, node: NodeDevices, candidates: list[Candidate], request: Request) -> Allocation | None:
        """The allocation of ``request`` on these GPUs of ``node``; ``None`` if they are not enough. Simulations may choose otherwise."""
        return chosen(node, candidates, request)

    def hold(
        self,
        uid: str,
        pod: str,
        node: str,
        allocation: Allocation,
        *,
        confirmed: bool = True,
        priority: int = 0,
    ) -> None:
        """Record the pod's allocation as the API server has it, in place of any earlier one.

        It is recorded even if it does not fit, because another scheduler may have allocated it. An allocation that is not
        ``confirmed`` counts as a reservation and does not replace a confirmed one. ``priority`` as in ``Held``.
        """
        held = self._held.get(uid)
        if held is not None:
            if held.confirmed and not confirmed:
                return
            if held.node == node and held.allocation == allocation and held.priority == priority:
                self._reserved += held.confirmed - confirmed
                self._held[uid] = Held(uid, pod, node, held.allocation, confirmed, priority)
                return
        self._put(Held(uid, pod, node, allocation, confirmed, priority))

    def release(self, uid: str) -> bool:
        """Free what the pod holds, reserved or confirmed; false if it held nothing."""
        held = self._held.pop(uid, None)
        if held is None:
            return False
        self._reserved -= not held.confirmed
        self._books.free(held)
        self.allocation_changed(uid)
        return True

    def held(self, uid: str) -> Held | None:
        """What the pod holds, or ``None``."""
        return self._held.get(uid)

    def arrived(self, request: Request) -> None:
        """Count a request in the expected mix: once per pod, whether it fits or not."""
        if not request.by_gpu:
            self._growth.arrived(request)

    def precompute(self, request: Request) -> None:
        """Compute and cache what answers about ``request`` need. Answers are the same without it, only slower."""
        self._left.of(request)
        self._scoring.precompute(request)

    def filter_for(self, uid: str, request: Request, nodes: Sequence[str]) -> Verdict:
        """As ``filter``, with what is nominated for the pod counted as free."""
        with self.nominations.as_free_for(uid):
            return self.filter(request, nodes)

    # --- decisions ------------------------------------------------------------------------------

    def filter(self, request: Request, nodes: Sequence[str]) -> Verdict:
        """Which of ``nodes`` take ``request`` now, and why each of the others does not."""
        at = self._books.column_cache.places(nodes)
        fits = self._fits(request, at)
        if fits.all():
            return Verdict(list(nodes), {}, {})
        if not fits.any():
            return Verdict([], *self._books.refusals.explain(request, list(nodes), at))
        names = list(compress(nodes, fits.tolist()))
        # They are usually requested again immediately, to be scored.
        self._books.column_cache.remember(names.copy(), at[fits])
        others = ~fits
        refused, hopeless = self._books.refusals.explain(
            request, list(compress(nodes, others.tolist())), at[others]
        )
        return Verdict(names, refused, hopeless)

    def fitting(self, request: Request, nodes: Sequence[str]) -> list[str]:
        """Those of ``nodes`` that take ``request`` now."""
        return list(compress(nodes, self._fits(request, self._books.column_cache.places(nodes)).tolist()))

    def best(self, request: Request, nodes: Sequence[str]) -> str | None:
        """The first of the ``nodes`` with the highest score that take ``request`` now."""
        at = self._books.column_cache.places(nodes)
        if request.unit_mib:
            # The best one may count in another unit.
            fits = self._fits(request, at)
            scores = np.where(fits, self._scoring.of(request, at), -1)
            return nodes[int(scores.argmax())] if fits.any() else None
        place = self._scoring.best(request, at)
        return None if place is None else nodes[place]

    def most_pods(self, request: Request, nodes: Sequence[str]) -> int:
        """How many more pods with ``request``, an ordinary one, ``nodes`` take together, or more: never fewer than could be reserved."""
        return most_pods(self._books.columns, request, self._books.column_cache.places(nodes))

    def score(self, request: Request, nodes: Sequence[str]) -> list[int]:
        """0 to 10 for each of ``nodes``, by the GPUs that it would allocate; 0 if the request does not fit."""
        scores: list[int] = self._scoring.of(request, self._books.column_cache.places(nodes)).tolist()
        return scores

    def largest_units(self, nodes: Sequence[str]) -> list[int]:
        """For each of ``nodes`` the units of its largest GPU; 0 for an unknown node."""
        units: list[int] = (
            self._books.columns.units.max(axis=0, initial=0)
            .take(self._books.column_cache.places(nodes))
            .tolist()
        )
        return units

    def standing_out(self, request: Request, nodes: Sequence[str]) -> list[tuple[str, int]]:
        """Those of ``nodes`` that score above the lowest score, and by how much, in the order of ``nodes``."""
        scores = self._scoring.of(request, self._books.column_cache.places(nodes))
        above = scores - scores.min(initial=MAX_SCORE)
        (places,) = above.nonzero()
        return [
            (nodes[place], score)
            for place, score in zip(places.tolist(), above[places].tolist(), strict=True)
        ]

    # --- figures --------------------------------------------------------------------------------

    def usage(self, node: str) -> NodeUsage:
        """The node's GPUs and their allocations, including those of missing GPUs."""
        book = self._books.nodes.get(node)
        return NodeUsage(node, None, (), ()) if book is None else usage_of(book, self._held.__getitem__)

    def columns_by_node(self) -> tuple[Columns, Mapping[str, int]]:
        """The figures of all GPUs and the column of each known node; read only, and valid until the next change."""
        return self._books.columns, self._books.column_of

    def totals(self) -> Totals:
        """The whole cluster in figures: sums over the arrays, independent of the number of pods."""
        columns = self._books.columns
        return Totals(
            nodes=len(self._books.column_of),
            gpus=int(np.count_nonzero(columns.total_mib)),
            total_mib=int(columns.total_mib.sum()),
            used_mib=int(columns.used_mib.sum()),
            used_core=int(columns.used_core.sum()),
            pods=len(self._held),
            reserved=self._reserved,
            pending=sum(len(gpu.pods) for gpu in self._books.absent),
        )

    # --- within -----------------------------------------------------------------------------------

    def _fits(self, request: Request, at: Places) -> Mask:
        fits: Mask = self._left.of(request).take(at) != FAR
        if request.unit_mib:
            fits &= self._books.columns.unit_mib.take(at) == request.unit_mib
        return fits

    def _candidates(self, book: NodeBook, node: NodeDevices, request: Request) -> list[Candidate]:
        """The GPUs of the node that could take ``request`` now; none if the node counts in another unit."""
        if request.unit_mib not in (0, node.unit.mib):
            return []
        candidates = book.candidates(request)
        if placement_for(request, node) is Placement.FRAGMENTATION and not request.by_gpu:
            grown = self._growth.by_gpu(request, book.column)
            candidates = (Candidate(*candidate[:-1], grown[candidate.row]) for candidate in candidates)
        return list(candidates)

    def _refused(self, request: Request, node: str) -> Refused:
        verdict = self.filter(request, (node,))
        assert not verdict.fits, "books and arrays must agree"
        hopeless = node in verdict.hopeless
        return Refused(node, (verdict.hopeless if hopeless else verdict.refused)[node], hopeless=hopeless)

    def _put(self, held: Held) -> None:
        self.release(held.uid)
        self._held[held.uid] = held
        self._reserved += not held.confirmed
        self._books.take(held)
        self.allocation_changed(held.uid)
