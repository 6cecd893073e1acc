"""Moves pods so that one fits that waits although there is room in all. Off unless asked for.

A pod that no node took for a while is looked at: the cheapest one or two pods that would have to leave a GPU for others
(``gpushare.planning.defragmentation``). They are evicted, as their disruption budgets allow; their controllers make them anew. What they free is
kept for the pod that waits, and a place for each of them is kept for what replaces it, from the decision on.

How often is bounded whoever dies when: between two acts lies at least ``Limits.interval_s``, counted from the start of this
process and from the last act that it made or saw. Each act is first noted on the pod that waits (``gpushare.dev/room-made``), so that
every scheduler that runs sees it. What is kept is not stored: a new leader decides anew, after the interval. Whoever does not
lead any more moves nobody, also for those about whom it was asked before.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from gpushare.api import names
from gpushare.api.errors import InvalidRequest
from gpushare.api.node.hosting import Guest
from gpushare.api.request.request import Request, request_of
from gpushare.kube.client.errors import ApiError, KubeError
from gpushare.kube.clock import Clock
from gpushare.kube.event_recorder import Recorder
from gpushare.ledger.preemption.victims import Rank
from gpushare.planning.defragmentation import Host, Move, Outlook, cheaper_ways, room_now, roomiest
from gpushare.process.log_setup import about
from gpushare.scheduler.cache.cache import ClusterCache
from gpushare.scheduler.cache.pod_records import PodRecord
from gpushare.scheduler.framework.interface import DecodePodFn, Task
from gpushare.scheduler.framework.services import NO_QUOTAS, MoveTargets, PodQuotas
from gpushare.scheduler.leader.lease import NotLeading
from gpushare.scheduler.plugins.defragmentation.limits import Limits
from gpushare.scheduler.plugins.defragmentation.mobility import with_mobility
from gpushare.scheduler.plugins.defragmentation.movable import Barred, Guests, Movable
from gpushare.scheduler.requeue.last_refusals import RefusingNodes

logger = logging.getLogger(__name__)

#: Seconds: between two looks, how long what is freed and the places of those that moved are kept, and how long a pod that
#: was refused before its watch told of it is remembered.
LOOK_S: Final = 1.0
RESERVED_S: Final = 180.0
#: Seconds until a pod for which room is kept, and which nobody tries, is asked for again; twice as long each time.
AGAIN_S: Final = 4.0
_UNSEEN_S: Final = 10.0
#: Waiting pods looked at for one act, and tries to find pods that may go. Acts of other schedulers that are remembered.
_LOOKED_AT: Final = 16
_TRIES: Final = 5
_ACTS: Final = 1024

REASON_MOVED: Final = "EvictedForDefragmentation"
REASON_ROOM_MADE: Final = "DefragmentationSucceeded"
REASON_REFUSED: Final = "DefragmentationRefused"


class Mover(Guests, Protocol):
    """What is asked of the API server (``gpushare.kube.client.client.Client``); all methods raise ``KubeError``."""

    async def evict_pod(self, namespace: str, name: str, *, uid: str) -> None:
        """Have it ended as its budgets allow."""

    async def annotate_pod(
        self, namespace: str, name: str, annotations: Mapping[str, str | None], *, uid: str
    ) -> None:
        """Set annotations."""


@dataclass(slots=True)
class _Refused:
    """Since when the pod is refused, and when it was looked at in vain."""

    since_s: float
    looked_s: float = float("-inf")


@dataclass(slots=True)
class _Place:
    """Room on ``node`` that is kept under ``key`` for what replaces a pod of ``owner``."""

    key: str
    owner: str
    node: str
    request: Request
    since_s: float


@dataclass(slots=True)
class _Kept:
    """Room that is kept for a waiting pod since then, who has to leave for it yet, and when it is to be tried (again)."""

    since_s: float
    leaving: set[str] = field(default_factory=set)
    try_s: float = 0.0
    again_s: float = AGAIN_S


class _NotWanted(Exception):
    """The pod for which others move has ended, has a node, or its room is another's by now."""


def _nobody(uid: str) -> Rank | None:
    return None


class Defragmenter:
    """Has pods moved for others that wait. ``retry`` has pods tried again soon; ``count`` counts what came of each act.

    ``must_lead`` is awaited right before each eviction, and raises ``NotLeading`` where another replica leads.
    """

    def __init__(
        self,
        view: ClusterCache,
        pods: Mover,
        events: Recorder,
        clock: Clock,
        limits: Limits,
        places: MoveTargets,
        *,
        quotas: PodQuotas = NO_QUOTAS,
        must_lead: Callable[[], Awaitable[None]],
        retry: Callable[[Iterable[str]], None],
        count: Callable[[str], None],
    ) -> None:
        self._view = view
        self._ledger = view.ledger
        self._pods = pods
        self._events = events
        self._clock = clock
        self._limits = limits
        self._policies = places
        self._must_lead = must_lead
        self._quotas = quotas
        self._movable = Movable(view, pods, places, quotas)
        self._retry = retry
        self._count = count
        self._refused: dict[str, _Refused] = {}
        self._nodes = RefusingNodes()
        self._kept: dict[str, _Kept] = {}
        self._places: list[_Place] = []
        self._acts: OrderedDict[str, str] = OrderedDict()
        self._acted_s = clock.monotonic()
        self._woken = asyncio.Event()

    # --- what filter and the informer tell ------------------------------------------------------

    def post_filter(self, uid: str, nodes: Collection[str]) -> None:
        """No node took the pod; ``nodes`` would if others were not there. It need not be known yet."""
        if not nodes or self._ledger.nominations.node_of(uid):
            return
        self._nodes.note(uid, nodes)
        if uid not in self._refused:
            self._refused[uid] = _Refused(self._clock.monotonic())
            self._woken.set()

    def pods_listed(self) -> None:
        """The first list of pods is complete: whom others left room to, and the process that knew it is gone, is tried at once."""
        left = [uid for uid in self._acts if uid in self._view.waiting]
        if left:
            self._retry(left)

    def pod_decoder(self, decode: DecodePodFn) -> DecodePodFn:
        """Which pods may be moved, and for which room was made, is read only where this plugin is enabled."""
        return with_mobility(decode)

    def pod_leaving(self, last: PodRecord) -> None:
        """Its place is kept for what replaces it."""

    def pod_arriving(self, record: PodRecord) -> None:
        """A pod was added or changed; the cache does not know yet."""
        if record.room_made and self._acts.get(record.uid) != record.room_made:
            self._acts[record.uid] = record.room_made
            self._acted_s = self._clock.monotonic()
            if len(self._acts) > _ACTS:
                self._acts.popitem(last=False)
        if self._places and record.owner and not record.finished:
            self._place_is_taken(record)

    def _place_is_taken(self, record: PodRecord) -> None:
        """What comes anew of a controller of which a pod was moved replaces that pod: the place is its own."""
        if record.uid in self._view.waiting or record.uid in self._view.bound:
            return
        place = next((one for one in self._places if one.owner == record.owner), None)
        if place is None:
            return
        self._places.remove(place)
        self._unkeep(place.key)
        if record.node or record.request is None:
            self._view.capacity_freed()
            return
        plan = self._ledger.evictions.plan(record.request, (place.node,), _nobody)
        if plan is not None:
            self._ledger.nominations.add(record.uid, record.request, plan)
            now_s = self._clock.monotonic()
            self._kept[record.uid] = _Kept(now_s, try_s=now_s + AGAIN_S)
            # kube-scheduler may have asked about it already, and was told that its place is taken.
            self._retry([record.uid])

    # --- the loop -------------------------------------------------------------------------------

    def tasks(self) -> Iterable[Task]:
        """What runs for as long as the process."""
        return [("defragmentation", self.run())]

    async def run(self) -> None:
        """Look after refused pods for ever; at most one act in each interval."""
        while True:
            if not self._refused and not self._kept and not self._places:
                await self._woken.wait()
            self._woken.clear()
            await self._clock.sleep(LOOK_S)
            self._forget()
            if self._clock.monotonic() < self._acted_s + self._limits.interval_s:
                continue
            for uid in self._due():
                refused, record = self._refused.get(uid), self._view.waiting.get(uid)
                if refused is None or record is None:
                    continue  # bound or gone while others were looked at
                refused.looked_s = self._clock.monotonic()
                try:
                    if await self._make_room(record, self._nodes.of(uid)):
                        break
                except NotLeading:
                    about_it = about(pod=record.pod, uid=record.uid)
                    logger.info(
                        "pod %s: nobody is moved for it, another scheduler leads", record.pod, extra=about_it
                    )
                    self._refused.clear()
                    self._nodes.clear()
                    break
                except KubeError as error:
                    self._count("failed")
                    about_it = about(pod=record.pod, uid=record.uid)
                    logger.warning(
                        "pod %s: nobody could be moved for it: %s", record.pod, error, extra=about_it
                    )
                    break

    def _forget(self) -> None:
        """Give up what nobody came for, and forget who was bound or is gone."""
        now_s = self._clock.monotonic()
        for uid, refused in list(self._refused.items()):
            if self._ledger.nominations.node_of(uid) or (
                uid not in self._view.waiting and now_s > refused.since_s + _UNSEEN_S
            ):
                del self._refused[uid]
                self._nodes.forget(uid)
        for uid, kept in list(self._kept.items()):
            if not self._ledger.nominations.node_of(uid):
                del self._kept[uid]
            elif now_s > kept.since_s + RESERVED_S:
                del self._kept[uid]
                self._give_back(uid)
            elif now_s >= kept.try_s and not kept.leaving & self._view.bound.keys():
                # One try may be lost: kube-scheduler may find that node shut, or its caches behind, and has no reason to ask again.
                kept.try_s, kept.again_s = now_s + kept.again_s, 2 * kept.again_s
                self._retry([uid])
        for place in self._places[:]:
            if now_s > place.since_s + RESERVED_S:
                self._places.remove(place)
                self._give_back(place.key)

    def _unkeep(self, *keys: str) -> None:
        for key in keys:
            self._policies.give_up(key)
            self._ledger.nominations.remove(key)

    def _give_back(self, *keys: str) -> None:
        self._unkeep(*keys)
        # Nothing happens in the cluster when room is not kept any more, so nobody but us wakes those who were refused for it.
        self._retry([uid for uid in (*keys, *self._nodes) if uid in self._view.waiting])
        self._view.capacity_freed()

    def _due(self) -> list[str]:
        """Whom to look at, the most important first, then who waits for longest."""
        now_s = self._clock.monotonic()
        found = [
            (-record.priority, refused.since_s, uid)
            for uid, refused in self._refused.items()
            if (record := self._view.waiting.get(uid)) is not None
            and self._nodes.of(uid)
            and record.request is not None
            and record.request.is_ordinary
            and record.gang is None
            and record.preempts
            and not self._quotas.refusal(uid)
            and now_s >= refused.since_s + self._limits.wait_s
            and now_s >= refused.looked_s + self._limits.interval_s
        ]
        return [uid for _, _, uid in sorted(found)[:_LOOKED_AT]]

    async def _make_room(self, record: PodRecord, nodes: list[str]) -> bool:
        """Whether something was done, or tried."""
        barred = Barred()
        for _ in range(_TRIES):
            found = await self._cheapest(record, nodes, barred)
            if not found.moves:
                break
            guests = await self._movable.bar(found, barred)
            if guests is not None:
                return await self._move(record, found, guests)
        if barred.by_budget:
            self._count("protected")
            note = "room could be made only by moving pods that a PodDisruptionBudget protects now"
            self._tell(record, REASON_REFUSED, note, kind="Warning")
        return False

    async def _cheapest(self, record: PodRecord, nodes: list[str], barred: Collection[str]) -> Outlook:
        """The cheapest way; others get their turn all the while."""
        request = record.request
        assert request is not None

        def may_move(uid: str) -> bool:
            other = self._view.bound.get(uid)
            return (
                other is not None
                and bool(other.owner)
                and not other.leaving
                and other.priority <= record.priority
                and uid not in barred
            )

        roomy: list[Host] = []
        for name in self._ledger.evictions.roomiest():
            host = self._ledger.evictions.host(name, may_move)
            if host is not None:
                roomy.append(host)
            await asyncio.sleep(0)
        elsewhere = roomiest(roomy)
        best = Outlook(None)
        for name in self._ledger.evictions.scattered(request, nodes):
            host = self._ledger.evictions.host(name, may_move)
            if host is None:
                continue
            if room_now(host, request) is not None:
                self._retry([record.uid])  # it is only to be tried again
                return Outlook(None)
            ways = cheaper_ways(host, elsewhere, request, best, most_moves=self._limits.most_moves)
            for best in ways:  # noqa: B007 (the last one counts)
                await asyncio.sleep(0)
        return best

    # --- the act --------------------------------------------------------------------------------

    async def _move(self, record: PodRecord, found: Outlook, guests: dict[str, Guest]) -> bool:
        movers = {uid: one for uid in guests if (one := self._view.bound.get(uid)) is not None}
        places = self._keep(record, found, guests, movers)
        if places is None:
            return False  # something has changed while it was thought about
        self._acted_s = now_s = self._clock.monotonic()
        self._kept[record.uid] = _Kept(now_s, set(movers))
        self._places += places.values()
        left: list[PodRecord] = []
        try:
            namespace, _, name = record.pod.partition("/")
            stamp = {names.ANN_ROOM_MADE: str(self._clock.time_ns())}
            await self._must_lead()
            await self._pods.annotate_pod(namespace, name, stamp, uid=record.uid)
            for move in found.moves:
                await self._evict(movers[move.pod], record, move)
                left.append(movers[move.pod])
        except (KubeError, NotLeading, _NotWanted) as error:
            self._undo(record, [places[uid] for uid in places if movers[uid] not in left])
            if isinstance(error, _NotWanted):
                about_it = about(pod=record.pod, uid=record.uid)
                logger.info("pod %s: nobody moves for it any more", record.pod, extra=about_it)
                return True
            if isinstance(error, ApiError) and error.status == 429:
                self._count("protected")
                note = "a pod that was to be moved is protected by its PodDisruptionBudget now"
                self._tell(record, REASON_REFUSED, note, kind="Warning")
                return True
            raise
        self._count("made")
        moved = ", ".join(f"{movers[move.pod].pod} to {move.target.node}" for move in found.moves)
        self._tell(record, REASON_ROOM_MADE, f"on {found.spot}, by moving {moved}")
        return True

    def _keep(
        self,
        record: PodRecord,
        found: Outlook,
        guests: dict[str, Guest],
        movers: dict[str, PodRecord],
    ) -> dict[str, _Place] | None:
        """Keep what becomes free for ``record``, and a place for each that moves; ``None``: it does not work out, nothing is kept.

        The ledger has the last word, between two awaits: the planner sees less than it does, and time has passed.
        """
        uid, request, spot = record.uid, record.request, found.spot
        assert request is not None
        assert spot is not None
        here = (spot.node,)
        now = self._view.waiting.get(uid)
        if (
            now is None
            or now.request != request
            or self._ledger.held(uid) is not None
            or self._ledger.nominations.node_of(uid)
            or len(movers) < len(guests)
            or self._ledger.evictions.plan(request, here, self._view.leaving)
            is not None  # room is made, or there is some
        ):
            return None
        plan = self._ledger.evictions.plan(request, here, _nobody, forced=movers.keys())
        if plan is None:
            return None
        self._ledger.nominations.add(uid, request, plan)
        now_s = self._clock.monotonic()
        places: dict[str, _Place] = {}
        for move in found.moves:
            mover, guest, node = movers[move.pod], guests[move.pod], move.target.node
            # The pod's own UID would end with it; this one is of no pod.
            key = f"moved:{mover.uid}"
            try:
                asked = request_of(guest)
            except InvalidRequest:
                asked = None
            # Those that move count no more: what comes in their place may stay on the node, at its cap of pods.
            target = (
                None
                if asked is None
                else self._ledger.evictions.plan(asked, (node,), _nobody, forced=movers.keys())
            )
            if asked is None or target is None or self._policies.take(key, guest, node):
                self._unkeep(uid, *(one.key for one in places.values()))
                return None
            # What is kept for it is charged to the quotas of its namespace, as the pod is that comes anew.
            self._quotas.observe(key, mover.pod, mover.amounts)
            self._ledger.nominations.add(key, asked, target)
            places[move.pod] = _Place(key, mover.owner, node, asked, now_s)
        return places

    def _undo(self, record: PodRecord, places: Iterable[_Place]) -> None:
        """Those whose ``places`` these are stay where they are, so there will be no room for ``record``."""
        self._kept.pop(record.uid, None)
        found = list(places)
        self._places = [one for one in self._places if one not in found]
        self._give_back(record.uid, *(one.key for one in found))

    async def _evict(self, mover: PodRecord, record: PodRecord, move: Move) -> None:
        namespace, _, name = mover.pod.partition("/")
        await self._must_lead()
        if not self._ledger.nominations.node_of(record.uid):
            raise _NotWanted  # the API server was asked twice since that was looked at
        # A line each: whoever follows either of them finds it.
        about_it = about(pod=mover.pod, uid=mover.uid, node=mover.node)
        logger.info("pod %s leaves %s for pod %s", mover.pod, move.source, record.pod, extra=about_it)
        about_it = about(pod=record.pod, uid=record.uid, node=mover.node)
        logger.info("pod %s: pod %s leaves %s for it", record.pod, mover.pod, move.source, extra=about_it)
        try:
            await self._pods.evict_pod(namespace, name, uid=mover.uid)
        except ApiError as error:
            if not (error.not_found or error.conflict):
                raise  # else it is gone, or another by now
        note = f"moved so that pod {record.pod} fits on {move.source}; a place is kept on node {move.target.node}"
        self._tell(mover, REASON_MOVED, note)

    def _tell(
        self, record: PodRecord, reason: str, note: str, *, kind: Literal["Normal", "Warning"] = "Normal"
    ) -> None:
        self._events.record(
            record.reference(),
            kind=kind,
            reason=reason,
            action="Defragmenting",
            note=note,
            telling="standing" if reason == REASON_REFUSED else "each",
        )
