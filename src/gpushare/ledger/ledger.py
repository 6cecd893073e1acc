"""The ledger: events from the API server and reservations go in, decisions and figures come out.

Every change touches the books of one node and a few cells of the arrays, whatever the size of the cluster. What a pod
holds is kept as it was recorded, by GPU UUID, also when node or GPU is not there: so the order of events does not matter.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain, compress, repeat
from typing import Self

import numpy as np

from gpushare.api.allocation.allocation import Allocation, GpuShare
from gpushare.api.node.device import NodeDevices, Placement
from gpushare.api.request.request import Request
from gpushare.ledger.arrays import Found, Index, Mask, Places
from gpushare.ledger.columns import NO_NODE, Columns
from gpushare.ledger.errors import Refused
from gpushare.ledger.fit.reasons import standing_refusals, unhealthy_text
from gpushare.ledger.fit.refusals import Refusals
from gpushare.ledger.fit.single_gpu import FAR
from gpushare.ledger.fit.without_pods import fits_without
from gpushare.ledger.node_book import UNKNOWN_CPU_MILLI, GpuBook, NodeBook, same_gpus
from gpushare.ledger.nominations import KeptRoom, SuspendedNominations
from gpushare.ledger.placement.fragmentation.growth import Growth
from gpushare.ledger.placement.policies import Candidate, chosen
from gpushare.ledger.placement.ranks import MAX_SCORE
from gpushare.ledger.placement.score_cache import LeftOver
from gpushare.ledger.placement.scoring import Scoring
from gpushare.ledger.placement.topology_sets import Nearness
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
from gpushare.ledger.results import Held, NodeUsage, Totals, Verdict
from gpushare.ledger.usage import usage_of
from gpushare.planning.defragmentation import Host
from gpushare.process.event import Event


class Ledger:
    """Who holds what on which GPU. Not for several threads.

    ``node_policy`` says whether nodes with the least left over score highest (binpack), those with the most (spread) or
    those where what arrives could use least less (fragmentation); on a node, its own placement decides.
    """

    def __init__(self, *, node_policy: Placement = Placement.BINPACK) -> None:
        self._nodes: dict[str, NodeBook] = {}
        self._column_of = Index(NO_NODE)
        self._columns = Columns()
        self._refusals = Refusals(self._columns)
        self._near = Nearness()
        self._left = LeftOver(self._columns, self._near, node_policy)
        self._growth = Growth(self._columns, self._near)
        self.fragments_mib = self._growth.fragments_mib
        """How much of what is free the mix of arrivals could not use on average (``ledger.placement.fragmentation.measure``)."""
        self._scoring = Scoring(self._columns, self._left, self._growth, self._near)
        self._found = Found(self._column_of)
        self._held: dict[str, Held] = {}
        self._reserved = 0
        # GPUs that are not there, but of which pods hold a share.
        self._absent: set[GpuBook] = set()
        self.allocation_changed: Event[str] = Event()
        """Called with the UID of a pod for which capacity is allocated or nominated, or is not any more."""
        # Room on a node that waits for its pod until others have ended.
        self.kept_room = KeptRoom(self._nodes, self._changed, self._recounted, self.allocation_changed)
        self.gpus_chosen: Event[str, str, list[Candidate]] = Event()
        """Called with a UID and a node when GPUs of it were chosen, and with those of which they were."""

    @classmethod
    def of(cls, nodes: Iterable[NodeDevices]) -> Self:
        """A ledger of ``nodes`` on which nobody holds anything."""
        ledger = cls()
        for node in nodes:
            ledger.set_node(node)
        return ledger

    # --- nodes ------------------------------------------------------------------------------

    def set_node(self, node: NodeDevices) -> None:
        """Take ``node`` as it is now; what its pods hold stays, whatever has changed."""
        book = self._book(node.name)
        if book.devices == node:
            return
        self.kept_room.unkeep_changed(node.name, book.devices, node)
        moving = [] if same_gpus(book.devices, node) else self._lift(book)
        if book.devices is None:
            book.column = self._column_of[node.name] = self._columns.take()
            self._found.forget()
        else:
            self._columns.empty(book.column)
        book.devices = node
        book.standing = standing_refusals(node)
        book.near = self._near.number_of(node.near)
        self._lose_gpus(book)
        for row, device in enumerate(node.devices):
            gpu = book.gpu(device.uuid)
            gpu.device, gpu.row, gpu.units = device, row, node.units_of(device)
            gpu.refresh(node, shut=book.shut)
            book.present.append(gpu)
            self._absent.discard(gpu)
        self._drop_unused_gpus(book)
        self._columns.write_node(book)
        self._refusals.set_node(
            book.column, book.standing, unhealthy_text(node.devices), node.mode.one_gpu_text
        )
        self._lay(book, moving)

    def remove_node(self, name: str) -> None:
        """Forget the node; what its pods hold stays until it is released, should the node come back."""
        book = self._nodes.get(name)
        if book is None or book.devices is None:
            return
        self.kept_room.unkeep_changed(name, book.devices, None)
        moving = self._lift(book)
        self._columns.give_back(self._column_of.pop(name))
        self._found.forget()
        self._refusals.forget_node(book.column)
        book.devices, book.column = None, NO_NODE
        self._lose_gpus(book)
        self._drop_unused_gpus(book)
        self._lay(book, moving)
        self._drop_unused_node(book)

    def node(self, name: str) -> NodeDevices | None:
        """The node as it was last set, ``None`` if it is not known."""
        book = self._nodes.get(name)
        return None if book is None else book.devices

    def node_names(self) -> list[str]:
        """Every known node."""
        return list(self._column_of)

    def set_free_cpu(self, name: str, milli: int | None) -> None:
        """How many thousandths of processors a known node's pods leave (``None``: nobody knows)."""
        book = self._nodes.get(name)
        if book is None or book.devices is None:
            return
        free = UNKNOWN_CPU_MILLI if milli is None else min(max(milli, 0), UNKNOWN_CPU_MILLI)
        if book.free_cpu_milli != free:
            book.free_cpu_milli = free
            self._columns.write_cpu(book)

    # --- what pods hold -----------------------------------------------------------------------

    def reserve(self, uid: str, pod: str, request: Request, node: str) -> Allocation:
        """Give ``request`` on the GPUs of ``node`` that its placement prefers, until it is confirmed or released.

        The same UID and node again give the same allocation; a reservation on another node is moved.
        Raises ``Refused``, and changes nothing then, where it does not fit or the pod is bound elsewhere.
        """
        held = self._held.get(uid)
        if held is not None:
            if held.node == node:
                return held.allocation
            if held.confirmed:
                raise Refused(node, f"pod {pod} already holds its share on node {held.node}", hopeless=True)
        book = self._nodes.get(node)
        if book is None or book.devices is None:
            raise self._refused(request, node)
        candidates = self._candidates(book, book.devices, request)
        allocation = chosen(book.devices, candidates, request)
        if allocation is None:
            raise self._refused(request, node)
        self._put(Held(uid, pod, node, allocation, confirmed=False))
        self.gpus_chosen(uid, node, candidates)
        return allocation

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
        """Record what the API server says that the pod holds, in place of whatever it held here before.

        It is recorded even where it does not fit: what others gave away is gone all the same. What is not
        ``confirmed`` counts like a reservation, and does not take the place of what is. ``priority`` as in ``Held``.
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
        book = self._nodes[held.node]
        self._count(book, held.allocation, -1)
        self._free(book, held)
        self._drop_unused_node(book)
        self.allocation_changed(uid)
        return True

    def held(self, uid: str) -> Held | None:
        """What the pod holds, or ``None``."""
        return self._held.get(uid)

    def arrived(self, request: Request) -> None:
        """Count a request into the mix that is to be expected: once for each pod, whether it fits or not."""
        if not request.by_gpu:
            self._growth.arrived(request)

    def foresee(self, request: Request) -> None:
        """Work out what answers about ``request`` go by, and keep it as they do. It changes no answer, only when the time is spent."""
        self._left.of(request)
        self._scoring.foresee(request)

    # --- room for pods that wait for others to end ----------------------------------------------

    def keep(self, uid: str, request: Request, plan: Plan) -> None:
        """Keep what ``plan`` frees, and what is free there, from all others, until ``unkeep``."""
        self.kept_room.keep(uid, request, plan)

    def unkeep(self, uid: str) -> None:
        """Keep nothing more for the pod, if anything was."""
        self.kept_room.unkeep(uid)

    def lift(self, uids: Iterable[str]) -> SuspendedNominations:
        """Keep nothing for these pods, until what was kept is kept again by ``keep_again``."""
        return self.kept_room.lift(uids)

    def keep_again(self, lifted: SuspendedNominations) -> None:
        """Keep what ``lift`` gave; nothing else may have changed since."""
        self.kept_room.keep_again(lifted)

    def kept_on(self, uid: str) -> str:
        """The node on which room is kept for the pod; empty where none is."""
        return self.kept_room.on(uid)

    def kept_there(self, node: str) -> Mapping[str, tuple[GpuShare, ...]]:
        """What is kept on the node, by the UID of the pod for which it is (a pod that moves has a key instead)."""
        return self.kept_room.there(node)

    def filter_for(self, uid: str, request: Request, nodes: Sequence[str]) -> Verdict:
        """As ``filter``, for a pod that may have room kept for it: that is its own."""
        with self.kept_room.as_its_own(uid):
            return self.filter(request, nodes)

    # --- whose end, or move, makes room -----------------------------------------------------------

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

        Quicker with the ``priority`` that ``rank`` goes by, as ``where_others_could_go`` takes it.
        """
        rule = rule or NoRule()
        some: Iterable[Iterable[str]] = [nodes]
        if priority is not None:
            some = self.where_others_could_go(request, nodes, priority)
        if rule.short:
            # Somebody has to go on any node: where there is room already it does not cost less.
            some = [chain.from_iterable(some)]
        books = (filter(None, map(self._nodes.get, names)) for names in some)
        return first_plan(books, self._held.__getitem__, request, rank, forced=forced, rule=rule)

    def where_others_could_go(
        self, request: Request, nodes: Sequence[str], priority: int | Mapping[str, int]
    ) -> Iterable[Iterable[str]]:
        """Where ends of pods below ``priority`` can be enough, stage by stage; those of the least important pods first.

        ``priority`` may be another for each node; nobody goes where it names none, but who leaves already.
        """
        at = self._places(nodes)
        if isinstance(priority, int):
            found = self._columns.where_others_could_go(request, priority, at)
        else:
            limits = np.fromiter(map(priority.get, nodes, repeat(LEAVING + 1)), np.int64, len(nodes))
            found = self._columns.where_others_could_go(request, limits, at)
        return [nodes] if found is None else (map(nodes.__getitem__, some.tolist()) for some in found)

    def scattered(self, request: Request, nodes: Sequence[str]) -> list[str]:
        """Those of ``nodes`` that have room for ``request`` on all GPUs together, those that lack least on one first."""
        return [nodes[place] for place in scattered(self._columns, request, self._places(nodes)).tolist()]

    def roomiest(self) -> list[str]:
        """The nodes of which a GPU has the most free, as many as a look at moves needs."""
        names = list(self._column_of)
        return [names[place] for place in roomiest(self._columns, self._places(names)).tolist()]

    def host(self, node: str, may_move: MayMoveFn, wanted: WantedGpusFn = everywhere) -> Host | None:
        """The node as the planner of moves takes it; ``None`` where it is not known or takes nothing new."""
        book = self._nodes.get(node)
        return None if book is None else host_of(book, self._held.__getitem__, may_move, wanted)

    # --- decisions ------------------------------------------------------------------------------

    def filter(self, request: Request, nodes: Sequence[str]) -> Verdict:
        """Which of ``nodes`` take ``request`` now, and for each of the others why not."""
        at = self._places(nodes)
        fits = self._fits(request, at)
        if fits.all():
            return Verdict(list(nodes), {}, {})
        if not fits.any():
            return Verdict([], *self._refusals.explain(request, list(nodes), at))
        names = list(compress(nodes, fits.tolist()))
        self._found.note(names.copy(), at[fits])  # mostly they are asked for again at once, to be scored
        others = ~fits
        refused, hopeless = self._refusals.explain(
            request, list(compress(nodes, others.tolist())), at[others]
        )
        return Verdict(names, refused, hopeless)

    def fitting(self, request: Request, nodes: Sequence[str]) -> list[str]:
        """Those of ``nodes`` that take ``request`` now."""
        return list(compress(nodes, self._fits(request, self._places(nodes)).tolist()))

    def fits_without(self, request: Request, node: str, uids: Iterable[str]) -> bool:
        """Whether the node would take ``request`` if the pods ``uids``, which hold something there, did not."""
        return fits_without(self._nodes[node], map(self._held.__getitem__, uids), request)

    def best(self, request: Request, nodes: Sequence[str]) -> str | None:
        """The first of ``nodes`` with the highest score of those that take ``request`` now."""
        at = self._places(nodes)
        if request.unit_mib:
            # The best may count in another unit.
            fits = self._fits(request, at)
            scores = np.where(fits, self._scoring.of(request, at), -1)
            return nodes[int(scores.argmax())] if fits.any() else None
        place = self._scoring.best(request, at)
        return None if place is None else nodes[place]

    def score(self, request: Request, nodes: Sequence[str]) -> list[int]:
        """0 to 10 for each of ``nodes`` by the GPUs that it would give; 0 where the request does not fit."""
        found: list[int] = self._scoring.of(request, self._places(nodes)).tolist()
        return found

    def largest_units(self, nodes: Sequence[str]) -> list[int]:
        """For each of ``nodes`` the units of its largest GPU, 0 for one that is not known."""
        found: list[int] = self._columns.units.max(axis=0, initial=0).take(self._places(nodes)).tolist()
        return found

    def standing_out(self, request: Request, nodes: Sequence[str]) -> list[tuple[str, int]]:
        """Those of ``nodes`` whose score is above the least of them, and by how much, in the order asked."""
        found = self._scoring.of(request, self._places(nodes))
        above = found - found.min(initial=MAX_SCORE)
        (places,) = above.nonzero()
        return [
            (nodes[place], score)
            for place, score in zip(places.tolist(), above[places].tolist(), strict=True)
        ]

    # --- figures --------------------------------------------------------------------------------

    def usage(self, node: str) -> NodeUsage:
        """What the node's GPUs have and what is held of them, and what is held of GPUs not there."""
        book = self._nodes.get(node)
        return NodeUsage(node, None, (), ()) if book is None else usage_of(book, self._held.__getitem__)

    def columns_by_node(self) -> tuple[Columns, Mapping[str, int]]:
        """The figures of all GPUs, and the column of each known node; both to be read alone, and at once."""
        return self._columns, self._column_of

    def totals(self) -> Totals:
        """The whole cluster in figures: sums over the arrays, nothing that grows with the number of pods."""
        columns = self._columns
        return Totals(
            nodes=len(self._column_of),
            gpus=int(np.count_nonzero(columns.total_mib)),
            total_mib=int(columns.total_mib.sum()),
            used_mib=int(columns.used_mib.sum()),
            used_core=int(columns.used_core.sum()),
            pods=len(self._held),
            reserved=self._reserved,
            pending=sum(len(gpu.pods) for gpu in self._absent),
        )

    # --- within -----------------------------------------------------------------------------------

    def _fits(self, request: Request, at: Places) -> Mask:
        fits: Mask = self._left.of(request).take(at) != FAR
        if request.unit_mib:
            fits &= self._columns.unit_mib.take(at) == request.unit_mib
        return fits

    def _places(self, nodes: Sequence[str]) -> Places:
        return self._found.places(nodes)

    def _candidates(self, book: NodeBook, node: NodeDevices, request: Request) -> list[Candidate]:
        """The GPUs that the node could give ``request`` now; none where it counts in another unit."""
        if request.unit_mib not in (0, node.unit.mib):
            return []
        candidates = book.candidates(request)
        if node.placement is Placement.FRAGMENTATION and not request.by_gpu:
            grown = self._growth.by_gpu(request, book.column)
            candidates = (Candidate(*one[:-1], grown[one.row]) for one in candidates)
        return list(candidates)

    def _refused(self, request: Request, node: str) -> Refused:
        verdict = self.filter(request, (node,))
        assert not verdict.fits, "books and arrays must agree"
        hopeless = node in verdict.hopeless
        return Refused(node, (verdict.hopeless if hopeless else verdict.refused)[node], hopeless=hopeless)

    def _book(self, name: str) -> NodeBook:
        book = self._nodes.get(name)
        if book is None:
            book = self._nodes[name] = NodeBook(name)
        return book

    def _put(self, held: Held) -> None:
        self.release(held.uid)
        self._held[held.uid] = held
        self._reserved += not held.confirmed
        book = self._book(held.node)
        self._count(book, held.allocation, 1)
        self._take(book, held)
        self.allocation_changed(held.uid)

    def _take(self, book: NodeBook, held: Held) -> None:
        for share in map(book.counted, held.allocation.gpus):
            gpu = book.gpu(share.uuid)
            gpu.count(held.priority, share, 1)
            gpu.pods[held.uid] = None
            self._changed(book, share.uuid)

    def _free(self, book: NodeBook, held: Held) -> None:
        shares = [book.counted(share) for share in held.allocation.gpus]
        for share in shares:
            gpu = book.gpus[share.uuid]
            gpu.count(held.priority, share, -1)
            gpu.pods.pop(held.uid, None)
        # Only now: an allocation may name a GPU twice.
        for share in shares:
            self._changed(book, share.uuid)

    def _lift(self, book: NodeBook) -> list[Held]:
        """Take what is held off the node's GPUs, while these become others."""
        lifted = [self._held[uid] for uid in book.uids()]
        for held in lifted:
            self._free(book, held)
        return lifted

    def _lay(self, book: NodeBook, lifted: list[Held]) -> None:
        """Put it on the GPUs that the node has now."""
        for held in lifted:
            self._take(book, held)

    def _count(self, book: NodeBook, allocation: Allocation, step: int) -> None:
        if any(share.core_percent for share in allocation.gpus):
            book.core_pods += step
        else:
            book.memory_pods += step
        self._recounted(book)

    def _recounted(self, book: NodeBook) -> None:
        """Bring up to date what follows from the number of a node's pods, and of those for which room is kept."""
        if book.devices is not None:
            self._columns.write_kinds(book)
            if book.devices.max_node_pods is not None:
                # The cap on all may have been reached, or not any more: that shuts or opens every GPU.
                for gpu in book.present:
                    gpu.refresh(book.devices, shut=book.shut)
                    self._columns.write_gpu(book.column, gpu)

    def _changed(self, book: NodeBook, uuid: str) -> None:
        """Bring everything up to date that follows from what is held of a GPU."""
        gpu = book.gpus.get(uuid)
        if gpu is None:
            return
        if gpu.device is not None and book.devices is not None:
            gpu.refresh(book.devices, shut=book.shut)
            self._columns.write_gpu(book.column, gpu)
        elif gpu.pods:
            self._absent.add(gpu)
        else:
            self._absent.discard(gpu)
            del book.gpus[uuid]

    def _lose_gpus(self, book: NodeBook) -> None:
        for gpu in book.present:
            gpu.device = None
            if gpu.pods:
                self._absent.add(gpu)
        book.present.clear()

    def _drop_unused_gpus(self, book: NodeBook) -> None:
        for uuid in [uuid for uuid, gpu in book.gpus.items() if gpu.device is None and not gpu.pods]:
            del book.gpus[uuid]

    def _drop_unused_node(self, book: NodeBook) -> None:
        if book.devices is None and book.idle:
            del self._nodes[book.name]
