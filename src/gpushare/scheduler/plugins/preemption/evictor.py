"""Has pods ended for a more important one, and tells their owners for whom."""

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


class Ending:
    """Asks the API server for the end of pods. ``must_lead`` is awaited right before each; it raises ``NotLeading``."""

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
        self.left: set[str] = set()
        """UIDs of pods that kube-scheduler has come to make room for meanwhile: nobody ends for them here."""

    def stands(self, places: Mapping[str, str]) -> bool:
        """Whether all of ``places`` (UID → node; empty: a sum) wait yet for what is kept for them, there, and kube-scheduler for none."""
        for uid, node in places.items():
            waits = (self._view.waiting if node else self._view.waiting_non_gpu).get(uid)
            kept = self._view.ledger.nominations.node_of(uid) == node if node else self._quotas.keeps(uid)
            if waits is None or waits.leaving or not kept or uid in self.left:
                return False
        return True

    async def for_room(self, record: PodRecord, plan: Plan, places: Mapping[str, str]) -> bool:
        """Note on the pod for which node it waits, and have ``plan``'s victims ended, as ``end`` does."""
        if not any(self._view.with_node(uid) for uid in plan.victims):
            return True  # those that leave already are enough
        namespace, _, name = record.pod.partition("/")
        await self._must_lead()
        if not self.stands(places):
            return False
        await self._pods.nominate(namespace, name, plan.node, uid=record.uid)
        return await self.end(record, plan.victims, places, plan.node)

    async def end(
        self, record: PodRecord, uids: Collection[str], places: Mapping[str, str], node: str = ""
    ) -> bool:
        """Have the pods of these UIDs ended for ``record``'s pod, on whatever nodes where ``node`` is empty.

        No more of them once ``places`` do not stand; whether they did to the end.
        Raises ``KubeError``, ``NotLeading``; those asked for before are told of then.
        """
        if not self.stands(places):
            return False
        victims = [one for uid in uids if (one := self._view.with_node(uid)) is not None]
        where = f" on node {node}" if node else ""
        logger.info(
            "pod %s (priority %d): room is made%s by ending %s",
            record.pod,
            record.priority,
            where,
            ", ".join(f"{one.pod} (priority {one.priority})" for one in victims),
            extra=about(pod=record.pod, uid=record.uid, node=node),
        )
        claim = self._quotas.claim(record.uid, record.pod, record.amounts)
        # All at once: a claim is one on the tree of this moment.
        told = [(one, "" if claim is None else claim.words(one.uid)) for one in victims]
        for victim, why in told:
            await self._must_lead()
            if not self.stands(places):
                return False
            await self._evict(victim, record, where, why)
        return True

    async def _evict(self, victim: PodRecord, record: PodRecord, where: str, why: str) -> None:
        namespace, _, name = victim.pod.partition("/")
        try:
            await self._pods.evict_pod(namespace, name, uid=victim.uid)
        except ApiError as error:
            if error.not_found or error.conflict:
                return  # gone, or another by now
            raise
        about_it = about(pod=victim.pod, uid=victim.uid, node=victim.node)
        logger.info("pod %s: its end is asked for, room for pod %s", victim.pod, record.pod, extra=about_it)
        if self._view.with_node(victim.uid) is victim:
            # The informer will say so; until then nobody else has it ended once more.
            self._view.upsert_pod(msgspec.structs.replace(victim, leaving=True))
        self._quotas.ended(victim.uid)
        self._events.record(
            victim.reference(),
            kind="Normal",
            reason=REASON_PREEMPTED,
            action="Preempting",
            note=f"ended for pod {record.pod} (priority {record.priority}){where}"
            + (f": {why}" if why else ""),
        )
