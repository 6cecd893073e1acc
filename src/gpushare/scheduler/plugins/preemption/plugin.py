"""Makes room where only we refused: kube-scheduler then preempts nobody, for by its sums the pod would fit.

A pod that no node took, though the end of less important ones would help, is looked at a moment later, when
kube-scheduler has had its turn: if it ends pods itself, these leave already, and we end no others. What is freed, and
what is free beside it, is kept for the pod from the decision on; it is asked for its disruption budgets first, and of
those protected nobody is ended. Nothing of this is stored: a new leader decides anew, with those that leave counted, and whoever
does not lead any more ends nobody, and forgets whom it was asked about.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable
from itertools import islice
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
from gpushare.scheduler.plugins.preemption.evictor import Ending
from gpushare.scheduler.plugins.preemption.non_gpu_reclaim import Sums
from gpushare.scheduler.plugins.preemption.ranks import lesser, reach

if TYPE_CHECKING:
    from gpushare.scheduler.framework.preemption_results import Preemption

logger = logging.getLogger(__name__)

#: Seconds: what kube-scheduler is given to make room by itself, and how long room is kept for one pod.
SETTLE_S: Final = 1.0
KEPT_S: Final = 180.0
#: Seconds for which a pod is remembered of which the watch has not told yet.
_UNSEEN_S: Final = 10.0
#: Pods that are remembered for a look, and tries to find victims that no budget protects.
_REMEMBERED: Final = 1024
_TRIES: Final = 5
#: Waiting pods that are tried again when room is given up.
_HURRIED: Final = 64
#: Protected pods that are named.
_NAMED: Final = 8
#: How much further the next look at nodes begins: less than are looked at (of a rule's, half), so that in the end all were.
_TURN: Final = MOST_TRIED_BY_RULE // 2 - 1

REASON_NO_BUDGET: Final = "PreemptionRefused"
_GUARDED: Final = "room could be made only by ending pods that a PodDisruptionBudget protects now"


class _Found(NamedTuple):
    """A plan for one pod of a gang whose room is kept, and who was on its GPUs (UUIDs) then (UIDs)."""

    record: PodRecord
    plan: Plan
    gpus: frozenset[str]
    there: frozenset[str]


class Preemptor:
    """Ends pods for more important ones that only we refused.

    ``in_turn`` puts nodes for the pod of a UID in groups: in the first where it helps others are ended, in no other. ``must_lead`` is awaited
    right before anybody is asked to end; it raises ``NotLeading``.
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
        self._kept_since: dict[str, float] = {}
        self._sums = Sums(view, quotas, clock)
        self._ending = Ending(view, quotas, pods, events, self._still_leads)
        self._turn = 0
        self._looking = False
        self._backoff = Backoff(first_s=SETTLE_S)
        self._woken = asyncio.Event()
        self.retry_wanted: Event[Iterable[str]] = Event()
        """Called with the UIDs of pods that are to be tried soon."""
        self.decided: Event[str, str, Request | None, Preemption] = Event()
        """Called with UID, key and request of a pod, and what was decided about room for it."""
        self._in_turn = in_turn
        self._must_lead = must_lead

    def post_filter(self, uid: str, nodes: Collection[str]) -> None:
        """No node took the pod; on ``nodes`` room could be made. It need not be known yet."""
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
            self._ending.left.add(uid)

    def kept(self, uid: str) -> None:
        """Room is kept for the pod without anybody being asked to end: it is given up in time, too."""
        self._kept_since[uid] = self._clock.monotonic()
        self._woken.set()

    def tasks(self) -> Iterable[Task]:
        """What runs for as long as the process."""
        return [("preemption", self.run())]

    async def run(self) -> None:
        """Look after refused pods for ever, the most important first."""
        while True:
            if not self._asked and not self._kept_since and not self._sums:
                await self._woken.wait()
            self._woken.clear()
            await self._clock.sleep(SETTLE_S)
            self._forget()
            due_s = self._clock.monotonic() - SETTLE_S
            due = [
                uid
                for uid, (asked_s, _) in self._asked.items()
                if asked_s <= due_s and (asked_s <= due_s - _UNSEEN_S or self._view.knows(uid))
            ]
            nodes = {uid: self._asked.pop(uid)[1] for uid in due}
            waiting = [(uid, record) for uid in due if (record := self._may_preempt(uid)) is not None]
            self._looking = bool(waiting)
            self._ending.left.clear()
            for uid, record in sorted(waiting, key=lambda one: -one[1].priority):
                try:
                    if record.bystander:
                        await self._make_sum(record, nodes[uid])
                    elif record.gang is None:
                        await self._make_room(record, nodes[uid])
                    else:
                        await self._make_room_for_gang(record, nodes[uid])
                except NotLeading:
                    about_it = about(pod=record.pod, uid=record.uid)
                    logger.info(
                        "pod %s: nobody ends for it any more, another scheduler leads",
                        record.pod,
                        extra=about_it,
                    )
                    self._retire(uid)
                    break
                except KubeError as error:
                    self._ledger.nominations.remove(uid)
                    self._sums.give_up(uid)
                    about_it = about(pod=record.pod, uid=uid)
                    logger.warning(
                        "pod %s: no room could be made for it: %s", record.pod, error, extra=about_it
                    )
                    self._tell_vain(record, nodes[uid], f"the API server did not let it be made: {error}")
                    self._look_again(uid, nodes[uid], self._backoff.next_s())
                else:
                    self._backoff.reset()
            self._looking = False

    def _retire(self, uid: str) -> None:
        """Forget who waits for room, and what was just kept for one and its gang: the one that leads decides anew."""
        self._asked.clear()
        for other in self._gangs.together_with(uid):
            self._ledger.nominations.remove(other)

    def _look_again(self, uid: str, nodes: list[str], in_s: float = 0.0) -> None:
        """kube-scheduler may have no reason to ask about the pod again for minutes."""
        self._asked.setdefault(uid, (self._clock.monotonic() + in_s, nodes))

    def _may_preempt(self, uid: str) -> PodRecord | None:
        record = self._view.waiting.get(uid) or self._view.waiting_non_gpu.get(uid)
        if record is None or not record.preempts or record.leaving:
            return None
        return record if record.request is not None or record.bystander else None

    def _forget(self) -> None:
        """Give up room that nobody came for; a pod that was bound, or is gone, has given it up already."""
        now_s = self._clock.monotonic()
        given_up = self._sums.forget()
        for uid, since_s in list(self._kept_since.items()):
            if not self._ledger.nominations.node_of(uid):
                del self._kept_since[uid]
            elif now_s > since_s + KEPT_S:
                self._ledger.nominations.remove(uid)
                given_up = True
        if given_up:
            # Nothing happens in the cluster by that: who was refused for it is woken by nobody but us.
            for waiting in (self._view.waiting, self._view.waiting_non_gpu):
                self.retry_wanted(list(islice(waiting, _HURRIED)))
            self._view.capacity_freed()

    async def _make_room(self, record: PodRecord, nodes: list[str]) -> None:
        guarded: set[str] = set()
        for _ in range(_TRIES):
            plan = self._plan(record, nodes, guarded)
            if plan is None:
                break
            protected = await self._protected(plan.victims)
            if record.uid in self._ending.left:
                return
            if not protected:
                # Time has passed: it must still be the same.
                if self._plan(record, [plan.node], guarded) == plan:
                    self._tell_room(record, len(nodes), plan)
                    assert record.request is not None
                    self._keep(record, record.request, plan)
                    await self._end_for((record, plan))
                else:
                    self._look_again(record.uid, nodes)
                return
            guarded |= protected
        self._tell_in_vain(record, nodes, guarded)

    def _tell_in_vain(self, record: PodRecord, nodes: list[str], guarded: Collection[str]) -> None:
        """Nobody ends for it; ``guarded`` (UIDs) could have."""
        from gpushare.scheduler.framework.preemption_results import NO_ROOM_ANYWHERE

        if guarded:
            self._tell_guarded(record)
            names = sorted(one.pod for uid in guarded if (one := self._view.with_node(uid)) is not None)
            self._tell_vain(record, nodes, f"{_GUARDED}: {', '.join(names[:_NAMED])}")
        elif self._waits(record):
            self._tell_vain(record, nodes, NO_ROOM_ANYWHERE)

    def _tell_guarded(self, record: PodRecord) -> None:
        self._events.record(
            record.reference(),
            kind="Warning",
            reason=REASON_NO_BUDGET,
            action="Preempting",
            note=_GUARDED,
            telling="standing",
        )

    def _tell_vain(self, record: PodRecord, nodes: list[str], said: str) -> None:
        from gpushare.scheduler.framework.preemption_results import without_victims

        self.decided(record.uid, record.pod, record.request, without_victims(self._now_s, len(nodes), said))

    def _tell_room(self, record: PodRecord, nodes: int, plan: Plan) -> None:
        from gpushare.scheduler.framework.preemption_results import decided

        found = decided(self._view, self._now_s, nodes, plan.node, plan.victims)
        self.decided(record.uid, record.pod, record.request, found)

    @property
    def _now_s(self) -> float:
        return self._clock.time_ns() / 1e9

    async def _make_sum(self, record: PodRecord, nodes: list[str]) -> None:
        """For a pod without a GPU that has room on ``nodes``, and is kept back by the max of a quota."""
        if not any(self._in_turn(record.uid, nodes)):
            return
        guarded: set[str] = set()
        for _ in range(_TRIES):
            victims = self._sums.plan(record, guarded)
            if not victims:
                break
            protected = await self._protected(victims)
            if record.uid in self._ending.left:
                return
            if not protected:
                # Time has passed: it must still be the same.
                if self._sums.plan(record, guarded) == victims:
                    self._sums.keep(record)
                    if not await self._ending.end(record, victims, {record.uid: ""}):
                        self._sums.give_up(record.uid)
                        self.retry_wanted((record.uid,))
                else:
                    self._look_again(record.uid, nodes)
                return
            guarded |= protected
        if guarded:
            self._tell_guarded(record)

    async def _make_room_for_gang(self, record: PodRecord, nodes: list[str]) -> None:
        """For all of a gang that need room at once, or for nobody: it is kept for them before anybody is asked to end."""
        guarded: set[str] = set()
        for _ in range(_TRIES):
            plans = await self._plan_together(self._gangs.wanting(record.uid, nodes), guarded)
            if not plans:
                break
            try:
                protected = await self._protected([uid for one in plans for uid in one.plan.victims])
                if any(one.record.uid in self._ending.left for one in plans):
                    self._unkeep(plans)
                    return
                if not protected:
                    if all(map(self._holds, plans)):
                        for one in plans:
                            self._tell_room(one.record, len(nodes), one.plan)
                        await self._end_for(*((one.record, one.plan) for one in plans))
                    else:
                        self._unkeep(plans)
                        self._look_again(record.uid, nodes)
                    return
            except KubeError:
                self._unkeep(plans)
                raise
            self._unkeep(plans)
            guarded |= protected
        self._tell_in_vain(record, nodes, guarded)

    async def _plan_together(self, wanting: list[Wanting], guarded: set[str]) -> list[_Found]:
        """A plan for each, whose room is kept then, with nobody in two of them; empty where one finds none.

        Others get their turn between two plans, each of which takes milliseconds on thousands of nodes. So whether all of it
        holds yet is to be seen before anybody ends (``_holds``).
        """
        plans: list[_Found] = []
        ended: set[str] = set()
        for record, request, nodes in wanting:
            if plans:
                await asyncio.sleep(0)
            plan = self._plan(record, nodes, guarded, ended) if record.preempts else None
            if plan is None:
                self._unkeep(plans)
                return []
            self._keep(record, request, plan)
            gpus = self._gpus_of(plan)
            plans.append(_Found(record, plan, gpus, self._there(plan.node, gpus)))
            ended.update(plan.victims)
        return plans

    def _holds(self, found: _Found) -> bool:
        """Whether nothing has come between: the pod waits for the same yet, and its room is kept, to which nobody else has come."""
        record, plan, gpus, there = found
        waits = self._view.waiting.get(record.uid)
        if waits is None or waits.leaving or self._ledger.nominations.node_of(record.uid) != plan.node:
            return False
        same = (waits.request, waits.priority, waits.gang) == (record.request, record.priority, record.gang)
        return same and self._there(plan.node, gpus) <= there

    def _gpus_of(self, plan: Plan) -> frozenset[str]:
        node = self._ledger.node(plan.node)
        assert node is not None
        return frozenset(node.devices[row].uuid for row in plan.rows)

    def _there(self, node: str, gpus: frozenset[str]) -> frozenset[str]:
        """UIDs of those who hold something of the GPUs."""
        on_them = (gpu.pods for gpu in self._ledger.usage(node).gpus if gpu.uuid in gpus)
        return frozenset(uid for pods in on_them for uid in pods)

    def _unkeep(self, plans: list[_Found]) -> None:
        for found in plans:
            self._ledger.nominations.remove(found.record.uid)

    async def _end_for(self, *found: tuple[PodRecord, Plan]) -> None:
        """Whom the plans name, for as long as all wait for the room that is kept for them; else it is given up, for all."""
        places = {record.uid: plan.node for record, plan in found}
        self._kept_since |= dict.fromkeys(places, self._clock.monotonic())
        for record, plan in found:
            if not await self._ending.for_room(record, plan, places):
                for uid in places:
                    self._ledger.nominations.remove(uid)
                self.retry_wanted([uid for uid in places if uid not in self._ending.left])
                return

    def _plan(
        self, record: PodRecord, nodes: list[str], guarded: set[str], ended: Collection[str] = ()
    ) -> Plan | None:
        """For one pod; ``ended`` (UIDs) end for others of its gang."""
        if not self._waits(record):
            return None
        assert record.request is not None
        self._turn += _TURN
        for unit in self._in_turn(record.uid, nodes):
            for amounts, some in self._quotas.by_charge(record.amounts, record.request, unit):
                plan = self._plan_among(record, some, guarded, ended, amounts)
                if plan is not None:
                    return plan
        return None

    def _plan_among(
        self,
        record: PodRecord,
        nodes: list[str],
        guarded: set[str],
        ended: Collection[str],
        amounts: Amounts,
    ) -> Plan | None:
        """On nodes where the pod is charged ``amounts``."""
        claim = self._quotas.claim(record.uid, record.pod, amounts)
        rank = lesser(self._view, record.priority, guarded, claim)
        passed = None if claim is None else claim.passed(ended)
        if claim is None or passed is None:
            return self._cheapest(record, nodes, rank, claim, ended)
        # Somebody of its quotas has to go, whatever room there is: one who makes room for it besides, or others anywhere.
        there = {
            one.node
            for uid in claim.relieving(passed, ended)
            if (one := self._view.bound.get(uid)) is not None and rank(uid) is not None
        }
        plan = self._cheapest(record, [node for node in nodes if node in there], rank, claim, ended)
        return plan or self._with_relief(record, nodes, rank, claim, ended)

    def _with_relief(
        self,
        record: PodRecord,
        nodes: list[str],
        rank: RankFn,
        claim: Claim,
        ended: Collection[str],
    ) -> Plan | None:
        """Others end on whatever nodes, so that its quotas let it in, and it goes to one of ``nodes``."""
        from gpushare.ledger.preemption.quota_relief import relief

        others = relief(claim, rank, ended)
        if others is None:
            return None
        plan = self._cheapest(record, nodes, rank, claim, (*ended, *others))
        return None if plan is None else plan._replace(victims=(*others, *plan.victims))

    def _cheapest(
        self,
        record: PodRecord,
        nodes: list[str],
        rank: RankFn,
        claim: Claim | None,
        ended: Collection[str],
    ) -> Plan | None:
        """Of plans on one node each, with room that is kept for less important pods or without it."""
        turned = sequence_from(nodes, self._turn)
        below = reach(self._view, record.priority, claim, ended)

        def planned() -> Plan | None:
            assert record.request is not None
            return self._ledger.evictions.plan(
                record.request, turned, rank, forced=ended, rule=claim, priority=below
            )

        plan = planned()
        less_important = self._kept_for_lesser(record)
        if less_important and (plan is None or plan.victims):
            lifted = self._ledger.nominations.suspend(less_important)
            other = planned()
            self._ledger.nominations.restore(lifted)
            if other is not None and (plan is None or other.cost < plan.cost):
                return other._replace(in_place_of_others=True)
        return plan

    def _waits(self, record: PodRecord) -> bool:
        """Whether it waits as it did, and no room is kept for it: then others are moved for it, or were ended."""
        uid = record.uid
        if self._view.waiting.get(uid) is not record or record.leaving or self._ledger.held(uid) is not None:
            return False
        return not self._ledger.nominations.node_of(uid)

    def _kept_for_lesser(self, record: PodRecord) -> list[str]:
        """UIDs of less important pods for which room is kept: it gives way."""
        return [
            uid
            for uid in self._kept_since
            if self._ledger.nominations.node_of(uid)
            and (waits := self._view.waiting.get(uid)) is not None
            and waits.priority < record.priority
        ]

    def _keep(self, record: PodRecord, request: Request, plan: Plan) -> None:
        """Keep what a plan has found, in place of less important pods, and of all of their gangs."""
        if plan.in_place_of_others:
            node = self._ledger.node(plan.node)
            assert node is not None
            taken = self._gpus_of(plan)
            lifted = self._ledger.nominations.suspend(self._kept_for_lesser(record))
            # Elsewhere on the node it may stay, but not for a pod of the other kind, nor where the node's cap counts it.
            capped = node.max_node_pods is not None
            giving = {
                uid
                for uid, (name, shares) in lifted.items()
                if name == plan.node
                and (
                    capped
                    or any(
                        share.uuid in taken or (share.core_percent > 0) is not request.wants_core
                        for share in shares
                    )
                )
            }
            gone = {other for uid in giving for other in self._gangs.together_with(uid)}
            self._ledger.nominations.suspend(gone)
            self._ledger.nominations.restore({uid: kept for uid, kept in lifted.items() if uid not in gone})
            logger.info(
                "pod %s: room on node %s that was kept for others is its own",
                record.pod,
                plan.node,
                extra=about(pod=record.pod, uid=record.uid, node=plan.node),
            )
        self._ledger.nominations.add(record.uid, request, plan)

    async def _protected(self, victims: Collection[str]) -> set[str]:
        """Those of the victims that budgets do not let go."""
        if not victims:
            return set()
        reading = BudgetReading(self._view, self._pods)
        return protected(await reading.pods(victims), await reading.budgets())

    async def _still_leads(self) -> None:
        await self._must_lead()
