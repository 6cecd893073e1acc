"""Evicts victims for a more important pod, with an event on each victim that names that pod."""

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

import msgspec

from gpushare.kube.client.errors import ApiError
from gpushare.kube.event_recorder import Recorder
from gpushare.ledger.preemption.victims import Plan
from gpushare.process.log_setup import about
from gpushare.scheduler.cache.cache import ClusterCache
from gpushare.scheduler.cache.pod_records import PodRecord
from gpushare.scheduler.framework.services import PodQuotas
from gpushare.scheduler.plugins.preemption.disruption_budgets import Evictor

logger = logging.getLogger(__name__)

REASON_PREEMPTED: Final = "Preempted"


class VictimEvictor:
    """Evicts pods through the API server. ``must_lead`` is awaited right before each eviction; it raises ``NotLeading``."""

    def __init__(
        self,
        view: ClusterCache,
        quotas: PodQuotas,
        pods: Evictor,
        events: Recorder,
        must_lead: Callable[[], Awaitable[None]],
    ) -> None:
        self._view = view
        self._quotas = quotas
        self._pods = pods
        self._events = events
        self._must_lead = must_lead
        self.left_to_scheduler: set[str] = set()
        """UIDs of pods for which kube-scheduler itself has started to make room: nothing is evicted for them here."""

    def reservations_hold(self, places: Mapping[str, str]) -> bool:
        """Whether all pods of ``places`` are still pending with their reservations, and kube-scheduler makes room for none of them.

        ``places`` maps UIDs to nodes. An empty node stands for a reserved amount of a quota.
        """
        for uid, node in places.items():
            pending = (self._view.waiting if node else self._view.waiting_non_gpu).get(uid)
            reserved = self._view.ledger.nominations.node_of(uid) == node if node else self._quotas.keeps(uid)
            if pending is None or pending.leaving or not reserved or uid in self.left_to_scheduler:
                return False
        return True

    async def evict_for_room(self, record: PodRecord, plan: Plan, places: Mapping[str, str]) -> bool:
        """Nominate the pod to the plan's node and evict the plan's victims as ``evict`` does."""
        if not any(self._view.with_node(uid) for uid in plan.victims):
            return True  # pods that are already being deleted free enough
        namespace, _, name = record.pod.partition("/")
        await self._must_lead()
        if not self.reservations_hold(places):
            return False
        await self._pods.nominate(namespace, name, plan.node, uid=record.uid)
        return await self.evict(record, plan.victims, places, plan.node)

    async def evict(
        self, record: PodRecord, uids: Collection[str], places: Mapping[str, str], node: str = ""
    ) -> bool:
        """Evict the pods ``uids`` for the pod of ``record``; an empty ``node`` means that they are on any nodes.

        Stops once the reservations of ``places`` no longer hold, and returns whether they held to the end.
        Raises ``KubeError`` or ``NotLeading``; victims evicted before that have been logged and have their events.
        """
        if not self.reservations_hold(places):
            return False
        victims = [victim for uid in uids if (victim := self._view.with_node(uid)) is not None]
        where = f" on node {node}" if node else ""
        logger.info(
            "pod %s (priority %d): preemption%s evicts %s",
            record.pod,
            record.priority,
            where,
            ", ".join(f"{victim.pod} (priority {victim.priority})" for victim in victims),
            extra=about(pod=record.pod, uid=record.uid, node=node),
        )
        claim = self._quotas.claim(record.uid, record.pod, record.amounts)
        # All reasons are computed before the first await: a claim reflects the quota tree at this moment.
        victims_and_reasons = [
            (victim, "" if claim is None else claim.reason(victim.uid)) for victim in victims
        ]
        for victim, reason in victims_and_reasons:
            await self._must_lead()
            if not self.reservations_hold(places):
                return False
            await self._evict(victim, record, where, reason)
        return True

    async def _evict(self, victim: PodRecord, record: PodRecord, where: str, reason: str) -> None:
        namespace, _, name = victim.pod.partition("/")
        try:
            await self._pods.evict_pod(namespace, name, uid=victim.uid)
        except ApiError as error:
            if error.not_found or error.conflict:
                return  # deleted, or replaced by a pod of the same name
            raise
        log_fields = about(pod=victim.pod, uid=victim.uid, node=victim.node)
        logger.info(
            "pod %s: eviction requested, to make room for pod %s", victim.pod, record.pod, extra=log_fields
        )
        self._view.evicted(victim.uid)
        if self._view.with_node(victim.uid) is victim:
            # The informer will report the deletion; until then this keeps the pod from being evicted twice.
            self._view.upsert_pod(msgspec.structs.replace(victim, leaving=True))
        self._quotas.ended(victim.uid)
        self._events.record(
            victim.reference(),
            kind="Normal",
            reason=REASON_PREEMPTED,
            action="Preempting",
            note=f"evicted for pod {record.pod} (priority {record.priority}){where}"
            + (f": {reason}" if reason else ""),
        )
