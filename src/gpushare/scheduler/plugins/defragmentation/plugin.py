"""Moves pods so that a pending pod fits where free memory is sufficient in total but fragmented. Off by default.

For a pod that no node has taken for a while, the planner finds the cheapest one or two pods that would have to leave a GPU
(``gpushare.planning.defragmentation``). These are evicted as their PodDisruptionBudgets allow, and their controllers recreate them. From
the decision on, the room that they free is reserved for the pending pod, and a place on a target node is reserved for each replacement.

The rate is bounded even if processes die: between two acts lie at least ``Limits.interval_s`` seconds, counted from the start of this
process, from the last act that it made, and from when it became leader. Each act is first written on the pending pod (annotation
``gpushare.dev/room-made``), so that a later process has the pod retried. The annotation does not count for the rate: tenants may write it.
Reservations are not persisted: a new leader decides again after the interval. A scheduler that no longer leads moves no pods, not even for
pods that it was asked about before.
"""

import asyncio
import logging
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
from gpushare.ledger.preemption.vacating import WantedGpus
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
from gpushare.scheduler.plugins.defragmentation.movable import MoveChecker, PodReader, Unmovable
from gpushare.scheduler.requeue.last_refusals import RefusingNodes

logger = logging.getLogger(__name__)

#: Seconds between two looks, and for which freed room and places for moved pods stay reserved.
LOOK_S: Final = 1.0
RESERVED_S: Final = 180.0
#: Seconds until a pod with reserved room that kube-scheduler has not tried is retried; doubles each time.
RETRY_S: Final = 4.0
#: Seconds for which a refused pod is remembered that the watch has not reported yet.
_UNSEEN_S: Final = 10.0
#: Most pending pods examined for one act, and most attempts to find pods that may move.
_MAX_PODS_PER_ACT: Final = 16
_MAX_ATTEMPTS: Final = 5

REASON_MOVED: Final = "EvictedForDefragmentation"
REASON_ROOM_MADE: Final = "DefragmentationSucceeded"
REASON_REFUSED: Final = "DefragmentationRefused"


class Mover(PodReader, Protocol):
    """Calls of the API server for moving pods (``gpushare.kube.client.client.Client``); all methods raise ``KubeError``."""

    async def evict_pod(self, namespace: str, name: str, *, uid: str) -> None:
        """Evict the pod; the API server enforces its PodDisruptionBudgets."""

    async def annotate_pod(
        self, namespace: str, name: str, annotations: Mapping[str, str | None], *, uid: str
    ) -> None:
        """Set annotations; ``None`` removes one."""


@dataclass(slots=True)
class _Refused:
    """Since when the pod is refused, and when room was last sought for it."""

    since_s: float
    looked_s: float = float("-inf")


@dataclass(slots=True)
class _Place:
    """Room on ``node``, reserved under ``key`` for the replacement of a pod of ``owner``."""

    key: str
    owner: str
    node: str
    request: Request
    since_s: float


@dataclass(slots=True)
class _Reservation:
    """Room reserved for a pending pod since ``since_s``; the UIDs of the pods that must leave for it, and when to retry the pod."""

    since_s: float
    leaving: set[str] = field(default_factory=set)
    retry_at_s: float = 0.0
    retry_interval_s: float = RETRY_S


class _NoLongerWanted(Exception):
    """The pod for which others move is finished or bound, or its reserved room went to another pod."""


def _no_victims(uid: str) -> Rank | None:
    return None


class Defragmenter:
    """Moves pods for pending ones. ``retry`` has pods retried soon; ``count`` counts the outcome of each act.

    ``must_lead`` is awaited right before each eviction, and raises ``NotLeading`` if another replica leads.
    """

    def __init__(
        self,
        view: ClusterCache,
        pods: Mover,
        events: Recorder,
        clock: Clock,
        limits: Limits,
        targets: MoveTargets,
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
        self._targets = targets
        self._must_lead = must_lead
        self._quotas = quotas
        self._move_checker = MoveChecker(view, pods, targets, quotas)
        self._retry = retry
        self._count = count
        self._refused: dict[str, _Refused] = {}
        self._nodes = RefusingNodes()
        self._reservations: dict[str, _Reservation] = {}
        self._places: list[_Place] = []
        self._acted_s = clock.monotonic()
        self._woken = asyncio.Event()

    # --- called by filter and the informer ------------------------------------------------------

    def post_filter(self, uid: str, nodes: Collection[str]) -> None:
        """No node took the pod; ``nodes`` would without other pods. The watch need not have reported the pod yet."""
        if not nodes or self._ledger.nominations.node_of(uid):
            return
        self._nodes.note(uid, nodes)
        if uid not in self._refused:
            self._refused[uid] = _Refused(self._clock.monotonic())
            self._woken.set()

    def pods_listed(self) -> None:
        """The first list of pods is complete: retry pods for which a previous process made room, as its reservations are lost."""
        pending = [uid for uid, record in self._view.waiting.items() if record.room_made]
        if pending:
            self._retry(pending)

    def took_over(self) -> None:
        """This replica has become leader. The previous one may have moved pods just before."""
        self._acted_s = self._clock.monotonic()

    def pod_decoder(self, decode: DecodePodFn) -> DecodePodFn:
        """Also reads which pods may be moved and for which room was made. Only this plugin needs that."""
        return with_mobility(decode)

    def pod_leaving(self, last: PodRecord) -> None:
        """Nothing to do: the place stays reserved for the replacement."""

    def pod_arriving(self, record: PodRecord) -> None:
        """A pod was added or changed; the cache still has the previous state."""
        if self._places and record.owner and not record.finished:
            self._assign_place(record)

    def _assign_place(self, record: PodRecord) -> None:
        """Assign a reserved place to a new pod of the controller whose pod was moved."""
        if record.uid in self._view.waiting or record.uid in self._view.bound:
            return
        place = next((place for place in self._places if place.owner == record.owner), None)
        if place is None:
            return
        self._places.remove(place)
        self._cancel(place.key)
        if record.node or record.request is None:
            self._view.capacity_freed()
            return
        plan = self._ledger.evictions.plan(record.request, (place.node,), _no_victims)
        if plan is not None:
            self._ledger.nominations.add(record.uid, record.request, plan)
            now_s = self._clock.monotonic()
            self._reservations[record.uid] = _Reservation(now_s, retry_at_s=now_s + RETRY_S)
            # kube-scheduler may have asked about the pod already, when its place was still reserved under another key.
            self._retry([record.uid])

    # --- the loop -------------------------------------------------------------------------------

    def tasks(self) -> Iterable[Task]:
        """Background tasks that run for the lifetime of the process."""
        return [("defragmentation", self.run())]

    async def run(self) -> None:
        """Make room for refused pods, at most one act per interval, until cancelled."""
        while True:
            if not self._refused and not self._reservations and not self._places:
                await self._woken.wait()
            self._woken.clear()
            await self._clock.sleep(LOOK_S)
            self._clean_up()
            if self._clock.monotonic() < self._acted_s + self._limits.interval_s:
                continue
            for uid in self._due():
                refused, record = self._refused.get(uid), self._view.waiting.get(uid)
                if refused is None or record is None:
                    continue  # bound or deleted while other pods were examined
                refused.looked_s = self._clock.monotonic()
                try:
                    if await self._make_room(record, self._nodes.of(uid)):
                        break
                except NotLeading:
                    log_fields = about(pod=record.pod, uid=record.uid)
                    logger.info(
                        "pod %s: no pod is moved for it, another scheduler leads",
                        record.pod,
                        extra=log_fields,
                    )
                    self._refused.clear()
                    self._nodes.clear()
                    break
                except KubeError as error:
                    self._count("failed")
                    log_fields = about(pod=record.pod, uid=record.uid)
                    logger.warning(
                        "pod %s: no pod could be moved for it: %s", record.pod, error, extra=log_fields
                    )
                    break

    def _clean_up(self) -> None:
        """Release expired reservations, retry pods whose room is free, and forget bound and deleted pods."""
        now_s = self._clock.monotonic()
        for uid, refused in list(self._refused.items()):
            if self._ledger.nominations.node_of(uid) or (
                uid not in self._view.waiting and now_s > refused.since_s + _UNSEEN_S
            ):
                del self._refused[uid]
                self._nodes.forget(uid)
        for uid, reservation in list(self._reservations.items()):
            if not self._ledger.nominations.node_of(uid):
                del self._reservations[uid]
            elif now_s > reservation.since_s + RESERVED_S:
                del self._reservations[uid]
                self._release(uid)
            elif now_s >= reservation.retry_at_s and not reservation.leaving & self._view.bound.keys():
                # A retry may fail: kube-scheduler may find the node unschedulable or have a stale cache, and has no reason to ask again.
                reservation.retry_at_s, reservation.retry_interval_s = (
                    now_s + reservation.retry_interval_s,
                    2 * reservation.retry_interval_s,
                )
                self._retry([uid])
        for place in self._places[:]:
            if now_s > place.since_s + RESERVED_S:
                self._places.remove(place)
                self._release(place.key)

    def _cancel(self, *keys: str) -> None:
        for key in keys:
            self._targets.give_up(key)
            self._ledger.nominations.remove(key)

    def _release(self, *keys: str) -> None:
        self._cancel(*keys)
        # A release changes no object in the cluster, so only we can have the pods retried that were refused because of it.
        self._retry([uid for uid in (*keys, *self._nodes) if uid in self._view.waiting])
        self._view.capacity_freed()

    def _due(self) -> list[str]:
        """UIDs of the pods to examine: highest priority first, then the longest refused."""
        now_s = self._clock.monotonic()
        due = [
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
        return [uid for _, _, uid in sorted(due)[:_MAX_PODS_PER_ACT]]

    async def _make_room(self, record: PodRecord, nodes: list[str]) -> bool:
        """Try to move pods for ``record``; returns whether a move was made or attempted."""
        unmovable = Unmovable()
        for _ in range(_MAX_ATTEMPTS):
            outlook = await self._cheapest(record, nodes, unmovable)
            if not outlook.moves:
                break
            guests = await self._move_checker.check(outlook, unmovable)
            if guests is not None:
                return await self._move(record, outlook, guests)
        if unmovable.by_budget:
            self._count("protected")
            note = "only moving pods that are currently protected by a PodDisruptionBudget would free enough"
            self._record_event(record, REASON_REFUSED, note, kind="Warning")
        return False

    async def _cheapest(self, record: PodRecord, nodes: list[str], unmovable: Collection[str]) -> Outlook:
        """The cheapest way to make room. Yields to other tasks while it searches."""
        request = record.request
        assert request is not None

        def may_move(uid: str) -> bool:
            other = self._view.bound.get(uid)
            return (
                other is not None
                and bool(other.owner)
                and not other.leaving
                and other.priority <= record.priority
                and uid not in unmovable
            )

        def wanted(uid: str) -> WantedGpus:
            other = self._view.bound.get(uid)
            return WantedGpus(selection=None if other is None else other.selection)

        roomy: list[Host] = []
        for name in self._ledger.evictions.roomiest():
            host = self._ledger.evictions.host(name, may_move, wanted)
            if host is not None:
                roomy.append(host)
            await asyncio.sleep(0)
        targets = roomiest(roomy)
        best = Outlook(None)
        for name in self._ledger.evictions.scattered(request, nodes):
            host = self._ledger.evictions.host(name, may_move, wanted)
            if host is None:
                continue
            if room_now(host, request) is not None:
                self._retry([record.uid])  # there is room already, so a retry is enough
                return Outlook(None)
            ways = cheaper_ways(host, targets, request, best, most_moves=self._limits.most_moves)
            for best in ways:  # noqa: B007 (the last one counts)
                await asyncio.sleep(0)
        return best

    # --- the act --------------------------------------------------------------------------------

    async def _move(self, record: PodRecord, outlook: Outlook, guests: dict[str, Guest]) -> bool:
        movers = {uid: mover for uid in guests if (mover := self._view.bound.get(uid)) is not None}
        places = self._reserve(record, outlook, guests, movers)
        if places is None:
            return False  # the state has changed since the plan was made
        self._acted_s = now_s = self._clock.monotonic()
        self._reservations[record.uid] = _Reservation(now_s, set(movers))
        self._places += places.values()
        evicted: list[PodRecord] = []
        try:
            namespace, _, name = record.pod.partition("/")
            stamp = {names.ANN_ROOM_MADE: str(self._clock.time_ns())}
            await self._must_lead()
            await self._pods.annotate_pod(namespace, name, stamp, uid=record.uid)
            for move in outlook.moves:
                await self._evict(movers[move.pod], record, move)
                evicted.append(movers[move.pod])
        except (KubeError, NotLeading, _NoLongerWanted) as error:
            self._undo(record, [places[uid] for uid in places if movers[uid] not in evicted])
            if isinstance(error, _NoLongerWanted):
                log_fields = about(pod=record.pod, uid=record.uid)
                logger.info("pod %s: no pod is moved for it any more", record.pod, extra=log_fields)
                return True
            if isinstance(error, ApiError) and error.status == 429:
                self._count("protected")
                note = "a pod that would have to move is now protected by its PodDisruptionBudget"
                self._record_event(record, REASON_REFUSED, note, kind="Warning")
                return True
            raise
        self._count("made")
        moved = ", ".join(f"{movers[move.pod].pod} to {move.target.node}" for move in outlook.moves)
        self._record_event(record, REASON_ROOM_MADE, f"on {outlook.spot}, by moving {moved}")
        return True

    def _reserve(
        self,
        record: PodRecord,
        outlook: Outlook,
        guests: dict[str, Guest],
        movers: dict[str, PodRecord],
    ) -> dict[str, _Place] | None:
        """Reserve the freed room for ``record`` and a place for each moved pod. ``None``: that is not possible, and nothing is reserved.

        Must not await: the ledger has the final say, as it knows more than the planner, and time has passed since the plan was made.
        """
        uid, request, spot = record.uid, record.request, outlook.spot
        assert request is not None
        assert spot is not None
        spot_node = (spot.node,)
        pending = self._view.waiting.get(uid)
        if (
            pending is None
            or pending.request != request
            or self._ledger.held(uid) is not None
            or self._ledger.nominations.node_of(uid)
            or len(movers) < len(guests)
            or self._ledger.evictions.plan(request, spot_node, self._view.leaving)
            is not None  # room is being made, or there is some already
        ):
            return None
        plan = self._ledger.evictions.plan(request, spot_node, _no_victims, forced=movers.keys())
        if plan is None:
            return None
        self._ledger.nominations.add(uid, request, plan)
        now_s = self._clock.monotonic()
        places: dict[str, _Place] = {}
        for move in outlook.moves:
            mover, guest, node = movers[move.pod], guests[move.pod], move.target.node
            # A reservation under the moved pod's own UID would end with that pod, so the key is no pod's UID.
            key = f"moved:{mover.uid}"
            try:
                mover_request = request_of(guest)
            except InvalidRequest:
                mover_request = None
            # Moved pods no longer count: a replacement may stay on the same node even at its cap of pods.
            target_plan = (
                None
                if mover_request is None
                else self._ledger.evictions.plan(mover_request, (node,), _no_victims, forced=movers.keys())
            )
            if mover_request is None or target_plan is None or self._targets.take(key, guest, node):
                self._cancel(uid, *(place.key for place in places.values()))
                return None
            # The reservation is charged to the quotas of the namespace, as the replacement will be.
            self._quotas.observe(key, mover.pod, mover.amounts)
            self._ledger.nominations.add(key, mover_request, target_plan)
            places[move.pod] = _Place(key, mover.owner, node, mover_request, now_s)
        return places

    def _undo(self, record: PodRecord, places: Iterable[_Place]) -> None:
        """Cancel the act: the pods of ``places`` are not moved, so there will be no room for ``record``."""
        self._reservations.pop(record.uid, None)
        cancelled = list(places)
        self._places = [place for place in self._places if place not in cancelled]
        self._release(record.uid, *(place.key for place in cancelled))

    async def _evict(self, mover: PodRecord, record: PodRecord, move: Move) -> None:
        namespace, _, name = mover.pod.partition("/")
        await self._must_lead()
        if not self._ledger.nominations.node_of(record.uid):
            raise _NoLongerWanted  # checked again, as the API server was called twice since
        # One line per pod, so that a search for either of them finds it.
        log_fields = about(pod=mover.pod, uid=mover.uid, node=mover.node)
        logger.info(
            "pod %s is moved off %s to make room for pod %s",
            mover.pod,
            move.source,
            record.pod,
            extra=log_fields,
        )
        log_fields = about(pod=record.pod, uid=record.uid, node=mover.node)
        logger.info(
            "pod %s: pod %s is moved off %s to make room for it",
            record.pod,
            mover.pod,
            move.source,
            extra=log_fields,
        )
        try:
            await self._pods.evict_pod(namespace, name, uid=mover.uid)
        except ApiError as error:
            if not (error.not_found or error.conflict):
                raise  # otherwise it was deleted, or replaced by a pod of the same name
        self._view.evicted(mover.uid)
        note = f"evicted so that pod {record.pod} fits on {move.source}; capacity for its replacement is reserved on node {move.target.node}"
        self._record_event(mover, REASON_MOVED, note)

    def _record_event(
        self, record: PodRecord, reason: str, note: str, *, kind: Literal["Normal", "Warning"] = "Normal"
    ) -> None:
        self._events.record(
            record.reference(),
            kind=kind,
            reason=reason,
            action="Defragmenting",
            note=note,
            occurrence="lasting" if reason == REASON_REFUSED else "each",
        )
