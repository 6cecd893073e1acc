"""Preempts for pods that only this scheduler refused. kube-scheduler does not preempt for them, as by its sums they would fit.

A refused pod that would fit without less important pods is examined a moment later, after kube-scheduler had time to preempt: if
kube-scheduler evicts pods itself, these are already being deleted, and we evict no others. From the decision on, the room that is freed
and the room that is free next to it are reserved for the pod. PodDisruptionBudgets are read before, and no protected pod is evicted.
Nothing is persisted: a new leader decides again and counts the pods that are being deleted. A scheduler that no longer leads evicts
nothing and forgets its queue.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from gpushare.api.disruption import protected
from gpushare.api.request.amounts import Amounts
from gpushare.api.request.request import Request
from gpushare.kube.backoff import Backoff
from gpushare.kube.client.errors import KubeError
from gpushare.kube.clock import Clock
from gpushare.kube.event_recorder import Recorder
from gpushare.ledger.preemption.victims import MOST_TRIED_BY_RULE, Plan, RankFn, sequence_from
from gpushare.ledger.quota.reclaim import Claim
from gpushare.process.event import Event
from gpushare.process.log_setup import about
from gpushare.scheduler.cache.cache import ClusterCache
from gpushare.scheduler.cache.pod_records import PodRecord
from gpushare.scheduler.framework.interface import Task
from gpushare.scheduler.framework.services import NO_GANGS, NO_QUOTAS, Gangs, PodQuotas, Wanting
from gpushare.scheduler.leader.lease import NotLeading, always_leads
from gpushare.scheduler.plugins.preemption.disruption_budgets import BudgetReading, Evictor
from gpushare.scheduler.plugins.preemption.evictor import VictimEvictor
from gpushare.scheduler.plugins.preemption.non_gpu_reclaim import QuotaReservations
from gpushare.scheduler.plugins.preemption.ranks import lesser, reach

if TYPE_CHECKING:
    from gpushare.scheduler.framework.preemption_results import Preemption

logger = logging.getLogger(__name__)

#: Seconds that kube-scheduler has to make room itself, and for which room stays reserved for a pod.
SETTLE_S: Final = 1.0
RESERVED_S: Final = 180.0
#: Seconds for which a pod is remembered that the watch has not reported yet.
_UNSEEN_S: Final = 10.0
#: Most pods in the queue, and attempts to find victims that no budget protects.
_REMEMBERED: Final = 1024
_TRIES: Final = 5
#: Most protected pods that are named in a reason.
_NAMED: Final = 8
#: Nodes by which the start of the next search advances. It is less than a search examines (half with a quota rule), so that all nodes
#: are examined in the end.
_ROTATION_STEP: Final = MOST_TRIED_BY_RULE // 2 - 1

REASON_NO_BUDGET: Final = "PreemptionRefused"
_GUARDED: Final = "only evicting pods that are currently protected by a PodDisruptionBudget would free enough"


class _GangMemberPlan(NamedTuple):
    """The plan for a pod of a gang, with its room reserved; ``pods_then``: UIDs of the pods on its GPUs (UUIDs) when it was made."""

    record: PodRecord
    plan: Plan
    gpus: frozenset[str]
    pods_then: frozenset[str]


class Preemptor:
    """Evicts pods for more important ones that only this scheduler refused.

    ``in_turn`` groups the nodes for a pod (UID): only in the first group where it helps are pods evicted. ``must_lead`` is awaited right
    before each eviction; it raises ``NotLeading``.
    """

    def __init__(
        self,
        view: ClusterCache,
        pods: Evictor,
        events: Recorder,
        clock: Clock,
        *,
        in_turn: Callable[[str, list[str]], list[list[str]]] = lambda uid, nodes: [nodes],
        must_lead: Callable[[], Awaitable[None]] = always_leads,
        gangs: Gangs = NO_GANGS,
        quotas: PodQuotas = NO_QUOTAS,
    ) -> None:
        self._view = view
        self._gangs = gangs
        self._quotas = quotas
        self._ledger = view.ledger
        self._pods = pods
        self._events = events
        self._clock = clock
        self._asked: OrderedDict[str, tuple[float, list[str]]] = OrderedDict()
        self._reserved_since: dict[str, float] = {}
        self._quota_reservations = QuotaReservations(view, quotas, clock)
        self._victim_evictor = VictimEvictor(view, quotas, pods, events, must_lead)
        self._rotation = 0
        self._looking = False
        self._backoff = Backoff(first_s=SETTLE_S)
        self._woken = asyncio.Event()
        self.retry_wanted: Event[Iterable[str]] = Event()
        """Called with the UIDs of pods that should be retried soon."""
        self.decided: Event[str, str, Request | None, Preemption] = Event()
        """Called with UID, key and request of a pod, and the decision about preemption for it."""
        self._in_turn = in_turn

    def post_filter(self, uid: str, nodes: Collection[str]) -> None:
        """No node took the pod, but room could be made on ``nodes``. The watch need not have reported the pod yet."""
        if not nodes or self._ledger.nominations.node_of(uid) or self._quotas.keeps(uid):
            return
        self._asked[uid] = (self._clock.monotonic(), list(nodes))
        if len(self._asked) > _REMEMBERED:
            self._asked.popitem(last=False)
        self._woken.set()

    def left_to_scheduler(self, uid: str) -> None:
        """kube-scheduler makes room for the pod itself."""
        self._asked.pop(uid, None)
        if self._looking:
            self._victim_evictor.left_to_scheduler.add(uid)

    def room_reserved(self, uid: str) -> None:
        """Room was reserved for the pod without an eviction of ours; it expires like other reservations."""
        self._reserved_since[uid] = self._clock.monotonic()
        self._woken.set()

    def tasks(self) -> Iterable[Task]:
        """Background tasks that run for the lifetime of the process."""
        return [("preemption", self.run())]

    async def run(self) -> None:
        """Make room for refused pods, the most important first, until cancelled."""
        while True:
            if not self._asked and not self._reserved_since and not self._quota_reservations:
                await self._woken.wait()
            self._woken.clear()
            await self._clock.sleep(SETTLE_S)
            self._release_expired()
            due_s = self._clock.monotonic() - SETTLE_S
            due = [
                uid
                for uid, (asked_s, _) in self._asked.items()
                if asked_s <= due_s and (asked_s <= due_s - _UNSEEN_S or self._view.knows(uid))
            ]
            nodes = {uid: self._asked.pop(uid)[1] for uid in due}
            pending = [(uid, record) for uid in due if (record := self._may_preempt(uid)) is not None]
            self._looking = bool(pending)
            if pending:
                self._view.recount_leaving()
            self._victim_evictor.left_to_scheduler.clear()
            for uid, record in sorted(pending, key=lambda uid_and_record: -uid_and_record[1].priority):
                try:
                    if record.bystander:
                        await self._reclaim_quota(record, nodes[uid])
                    elif record.gang is None:
                        await self._make_room(record, nodes[uid])
                    else:
                        await self._make_room_for_gang(record, nodes[uid])
                except NotLeading:
                    log_fields = about(pod=record.pod, uid=record.uid)
                    logger.info(
                        "pod %s: preemption stopped, because another replica now leads",
                        record.pod,
                        extra=log_fields,
                    )
                    self._drop_all(uid)
                    break
                except KubeError as error:
                    self._ledger.nominations.remove(uid)
                    self._quota_reservations.release(uid)
                    log_fields = about(pod=record.pod, uid=uid)
                    logger.warning("pod %s: preemption failed: %s", record.pod, error, extra=log_fields)
                    self._record_failure(
                        record, nodes[uid], f"the API server did not allow the preemption: {error}"
                    )
                    self._requeue(uid, nodes[uid], self._backoff.next_s())
                else:
                    self._backoff.reset()
            self._looking = False

    def _drop_all(self, uid: str) -> None:
        """Drop the queue and the latest reservations of the pod and its gang: the new leader decides again."""
        self._asked.clear()
        for other in self._gangs.together_with(uid):
            self._ledger.nominations.remove(other)

    def _requeue(self, uid: str, nodes: list[str], in_s: float = 0.0) -> None:
        """Put the pod back into the queue, as kube-scheduler may have no reason to ask about it again for minutes."""
        self._asked.setdefault(uid, (self._clock.monotonic() + in_s, nodes))

    def _may_preempt(self, uid: str) -> PodRecord | None:
        record = self._view.waiting.get(uid) or self._view.waiting_non_gpu.get(uid)
        if record is None or not record.preempts or record.leaving:
            return None
        return record if record.request is not None or record.bystander else None

    def _release_expired(self) -> None:
        """Release reservations that have expired. Those of bound or deleted pods are released elsewhere."""
        now_s = self._clock.monotonic()
        released = self._quota_reservations.release_expired()
        for uid, since_s in list(self._reserved_since.items()):
            if not self._ledger.nominations.node_of(uid):
                del self._reserved_since[uid]
            elif now_s > since_s + RESERVED_S:
                self._ledger.nominations.remove(uid)
                released = True
        if released:
            self._view.reservation_released()
            self._view.capacity_freed()

    async def _make_room(self, record: PodRecord, nodes: list[str]) -> None:
        guarded: set[str] = set()
        for _ in range(_TRIES):
            plan = self._plan(record, nodes, guarded)
            if plan is None:
                break
            protected = await self._protected(plan.victims)
            if record.uid in self._victim_evictor.left_to_scheduler:
                return
            if not protected:
                # Time has passed: it must still be the same.
                if self._plan(record, [plan.node], guarded) == plan:
                    self._record_decision(record, len(nodes), plan)
                    assert record.request is not None
                    self._reserve(record, record.request, plan)
                    await self._evict_victims((record, plan))
                else:
                    self._requeue(record.uid, nodes)
                return
            guarded |= protected
        self._report_failure(record, nodes, guarded)

    def _report_failure(self, record: PodRecord, nodes: list[str], guarded: Collection[str]) -> None:
        """No victims were found; budgets protect the possible victims ``guarded`` (UIDs)."""
        from gpushare.scheduler.framework.preemption_results import NO_ROOM_ANYWHERE

        if guarded:
            self._record_budget_event(record)
            names = sorted(victim.pod for uid in guarded if (victim := self._view.with_node(uid)) is not None)
            self._record_failure(record, nodes, f"{_GUARDED}: {', '.join(names[:_NAMED])}")
        elif self._is_pending(record):
            self._record_failure(record, nodes, NO_ROOM_ANYWHERE)

    def _record_budget_event(self, record: PodRecord) -> None:
        self._events.record(
            record.reference(),
            kind="Warning",
            reason=REASON_NO_BUDGET,
            action="Preempting",
            note=_GUARDED,
            occurrence="lasting",
        )

    def _record_failure(self, record: PodRecord, nodes: list[str], reason: str) -> None:
        from gpushare.scheduler.framework.preemption_results import without_victims

        self.decided(record.uid, record.pod, record.request, without_victims(self._now_s, len(nodes), reason))

    def _record_decision(self, record: PodRecord, nodes: int, plan: Plan) -> None:
        from gpushare.scheduler.framework.preemption_results import decided

        preemption = decided(self._view, self._now_s, nodes, plan.node, plan.victims)
        self.decided(record.uid, record.pod, record.request, preemption)

    @property
    def _now_s(self) -> float:
        return self._clock.time_ns() / 1e9

    async def _reclaim_quota(self, record: PodRecord, nodes: list[str]) -> None:
        """Evict for a pod without a GPU that has room on ``nodes`` and is refused only because of the max of a quota."""
        if not any(self._in_turn(record.uid, nodes)):
            return
        guarded: set[str] = set()
        for _ in range(_TRIES):
            victims = self._quota_reservations.plan(record, guarded)
            if not victims:
                break
            protected = await self._protected(victims)
            if record.uid in self._victim_evictor.left_to_scheduler:
                return
            if not protected:
                # Time has passed: it must still be the same.
                if self._quota_reservations.plan(record, guarded) == victims:
                    self._quota_reservations.reserve(record)
                    if not await self._victim_evictor.evict(record, victims, {record.uid: ""}):
                        self._quota_reservations.release(record.uid)
                        self.retry_wanted((record.uid,))
                else:
                    self._requeue(record.uid, nodes)
                return
            guarded |= protected
        if guarded:
            self._record_budget_event(record)

    async def _make_room_for_gang(self, record: PodRecord, nodes: list[str]) -> None:
        """Make room for all pods of a gang that need it at once, or for none. Room is reserved for all before the first eviction."""
        guarded: set[str] = set()
        for _ in range(_TRIES):
            plans = await self._plan_together(self._gangs.wanting(record.uid, nodes), guarded)
            if not plans:
                break
            try:
                protected = await self._protected([uid for member in plans for uid in member.plan.victims])
                if any(member.record.uid in self._victim_evictor.left_to_scheduler for member in plans):
                    self._cancel_reservations(plans)
                    return
                if not protected:
                    if all(map(self._still_valid, plans)):
                        for member in plans:
                            self._record_decision(member.record, len(nodes), member.plan)
                        await self._evict_victims(*((member.record, member.plan) for member in plans))
                    else:
                        self._cancel_reservations(plans)
                        self._requeue(record.uid, nodes)
                    return
            except KubeError:
                self._cancel_reservations(plans)
                raise
            self._cancel_reservations(plans)
            guarded |= protected
        self._report_failure(record, nodes, guarded)

    async def _plan_together(self, wanting: list[Wanting], guarded: set[str]) -> list[_GangMemberPlan]:
        """One plan per pod, with its room reserved and no victim in two plans; empty if there is no plan for one of the pods.

        A plan takes milliseconds on thousands of nodes, so other tasks run between two plans. The caller must therefore check
        that all plans are still valid before the first eviction (``_still_valid``).
        """
        plans: list[_GangMemberPlan] = []
        victims: set[str] = set()
        for record, request, nodes in wanting:
            if plans:
                await asyncio.sleep(0)
            plan = self._plan(record, nodes, guarded, victims) if record.preempts else None
            if plan is None:
                self._cancel_reservations(plans)
                return []
            self._reserve(record, request, plan)
            gpus = self._gpus_of(plan)
            plans.append(_GangMemberPlan(record, plan, gpus, self._pods_on(plan.node, gpus)))
            victims.update(plan.victims)
        return plans

    def _still_valid(self, member: _GangMemberPlan) -> bool:
        """Whether the pod is pending and unchanged, its room is still reserved, and no other pod was added to its GPUs."""
        record, plan, gpus, pods_then = member
        pending = self._view.waiting.get(record.uid)
        if pending is None or pending.leaving or self._ledger.nominations.node_of(record.uid) != plan.node:
            return False
        unchanged = (pending.request, pending.priority, pending.gang) == (
            record.request,
            record.priority,
            record.gang,
        )
        return unchanged and self._pods_on(plan.node, gpus) <= pods_then

    def _gpus_of(self, plan: Plan) -> frozenset[str]:
        node = self._ledger.node(plan.node)
        assert node is not None
        return frozenset(node.devices[row].uuid for row in plan.rows)

    def _pods_on(self, node: str, gpus: frozenset[str]) -> frozenset[str]:
        """UIDs of the pods that hold shares of the GPUs."""
        pods_by_gpu = (gpu.pods for gpu in self._ledger.usage(node).gpus if gpu.uuid in gpus)
        return frozenset(uid for pods in pods_by_gpu for uid in pods)

    def _cancel_reservations(self, plans: list[_GangMemberPlan]) -> None:
        for member in plans:
            self._ledger.nominations.remove(member.record.uid)

    async def _evict_victims(self, *records_and_plans: tuple[PodRecord, Plan]) -> None:
        """Evict the plans' victims while all pods are pending with their reservations; otherwise release the reservations of all."""
        places = {record.uid: plan.node for record, plan in records_and_plans}
        self._reserved_since |= dict.fromkeys(places, self._clock.monotonic())
        for record, plan in records_and_plans:
            if not await self._victim_evictor.evict_for_room(record, plan, places):
                for uid in places:
                    self._ledger.nominations.remove(uid)
                self.retry_wanted(
                    [uid for uid in places if uid not in self._victim_evictor.left_to_scheduler]
                )
                return

    def _plan(
        self, record: PodRecord, nodes: list[str], guarded: set[str], evicted: Collection[str] = ()
    ) -> Plan | None:
        """A plan for one pod; ``evicted`` (UIDs) are evicted for other pods of its gang."""
        if not self._is_pending(record):
            return None
        assert record.request is not None
        self._rotation += _ROTATION_STEP
        for unit in self._in_turn(record.uid, nodes):
            for amounts, same_charge in self._quotas.by_charge(record.amounts, record.request, unit):
                plan = self._plan_among(record, same_charge, guarded, evicted, amounts)
                if plan is not None:
                    return plan
        return None

    def _plan_among(
        self,
        record: PodRecord,
        nodes: list[str],
        guarded: set[str],
        evicted: Collection[str],
        amounts: Amounts,
    ) -> Plan | None:
        """A plan on nodes where the pod's quotas charge ``amounts`` for it."""
        claim = self._quotas.claim(record.uid, record.pod, amounts)
        rank = lesser(self._view, record.priority, guarded, claim)
        exceeded = None if claim is None else claim.passed(evicted)
        if claim is None or exceeded is None:
            return self._cheapest(record, nodes, rank, claim, evicted)
        # A pod of its quotas must be evicted even if there is room: preferably one that also makes room, otherwise pods on any nodes.
        victim_nodes = {
            victim.node
            for uid in claim.relieving(exceeded, evicted)
            if (victim := self._view.bound.get(uid)) is not None and rank(uid) is not None
        }
        plan = self._cheapest(record, [node for node in nodes if node in victim_nodes], rank, claim, evicted)
        return plan or self._with_relief(record, nodes, rank, claim, evicted)

    def _with_relief(
        self,
        record: PodRecord,
        nodes: list[str],
        rank: RankFn,
        claim: Claim,
        evicted: Collection[str],
    ) -> Plan | None:
        """A plan that evicts pods on any nodes until the quotas admit the pod, and puts it on one of ``nodes``."""
        from gpushare.ledger.preemption.quota_relief import relief

        victims_elsewhere = relief(claim, rank, evicted)
        if victims_elsewhere is None:
            return None
        plan = self._cheapest(record, nodes, rank, claim, (*evicted, *victims_elsewhere))
        return None if plan is None else plan._replace(victims=(*victims_elsewhere, *plan.victims))

    def _cheapest(
        self,
        record: PodRecord,
        nodes: list[str],
        rank: RankFn,
        claim: Claim | None,
        evicted: Collection[str],
    ) -> Plan | None:
        """The cheapest plan on a single node. Room reserved for less important pods may be used if that is cheaper."""
        rotated = sequence_from(nodes, self._rotation)
        below = reach(self._view, record.priority, claim, evicted)

        def planned() -> Plan | None:
            assert record.request is not None
            return self._ledger.evictions.plan(
                record.request, rotated, rank, forced=evicted, rule=claim, priority=below
            )

        plan = planned()
        less_important = self._reserved_for_less_important(record)
        if less_important and (plan is None or plan.victims):
            suspended = self._ledger.nominations.suspend(less_important)
            plan_without_reservations = planned()
            self._ledger.nominations.restore(suspended)
            if plan_without_reservations is not None and (
                plan is None or plan_without_reservations.cost < plan.cost
            ):
                return plan_without_reservations._replace(in_place_of_others=True)
        return plan

    def _is_pending(self, record: PodRecord) -> bool:
        """Whether the pod is pending and unchanged, and no room is reserved for it by an earlier preemption or a move."""
        uid = record.uid
        if self._view.waiting.get(uid) is not record or record.leaving or self._ledger.held(uid) is not None:
            return False
        return not self._ledger.nominations.node_of(uid)

    def _reserved_for_less_important(self, record: PodRecord) -> list[str]:
        """UIDs of less important pods whose reservations may be taken over."""
        return [
            uid
            for uid in self._reserved_since
            if self._ledger.nominations.node_of(uid)
            and (pending := self._view.waiting.get(uid)) is not None
            and pending.priority < record.priority
        ]

    def _reserve(self, record: PodRecord, request: Request, plan: Plan) -> None:
        """Reserve the plan's room, in place of reservations for less important pods and their whole gangs."""
        if plan.in_place_of_others:
            node = self._ledger.node(plan.node)
            assert node is not None
            gpus = self._gpus_of(plan)
            suspended = self._ledger.nominations.suspend(self._reserved_for_less_important(record))
            # Reservations on other GPUs of the node may stay, unless only one of both requests compute, or the node's cap counts them.
            capped = node.max_node_pods is not None
            displaced = {
                uid
                for uid, (name, shares) in suspended.items()
                if name == plan.node
                and (
                    capped
                    or any(
                        share.uuid in gpus or (share.core_percent > 0) is not request.wants_core
                        for share in shares
                    )
                )
            }
            displaced_with_gangs = {other for uid in displaced for other in self._gangs.together_with(uid)}
            self._ledger.nominations.suspend(displaced_with_gangs)
            self._ledger.nominations.restore(
                {uid: nomination for uid, nomination in suspended.items() if uid not in displaced_with_gangs}
            )
            logger.info(
                "pod %s: took over the capacity reserved for others on node %s",
                record.pod,
                plan.node,
                extra=about(pod=record.pod, uid=record.uid, node=plan.node),
            )
        self._ledger.nominations.add(record.uid, request, plan)

    async def _protected(self, victims: Collection[str]) -> set[str]:
        """The victims whose PodDisruptionBudgets allow no eviction now."""
        if not victims:
            return set()
        reading = BudgetReading(self._view, self._pods)
        return protected(await reading.pods(victims), await reading.budgets())
