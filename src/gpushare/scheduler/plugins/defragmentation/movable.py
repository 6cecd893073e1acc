"""Checks whether pods may be moved to the planner's targets, in the cluster's current state.

The planner (``gpushare.planning.defragmentation``) only knows GPUs. The pod to be moved must still exist, the target node must take it, its
ResourcePolicy and elastic quotas must admit it again, and its PodDisruptionBudgets must allow its eviction.
"""

import logging
from typing import Protocol

from gpushare.api import names
from gpushare.api.disruption import DisruptionBudget, protected
from gpushare.api.node.hosting import Guest, HostingNode, objection
from gpushare.kube.client.errors import ApiError
from gpushare.planning.defragmentation import Move, Outlook
from gpushare.process.log_setup import about
from gpushare.scheduler.cache.cache import ClusterCache
from gpushare.scheduler.cache.pod_records import PodRecord
from gpushare.scheduler.framework.services import MoveTargets, PodQuotas

logger = logging.getLogger(__name__)


class PodReader(Protocol):
    """Reads from the API server (``gpushare.kube.client.client.Client``); all methods raise ``KubeError``."""

    async def get_guest(self, namespace: str, name: str) -> Guest:
        """The current pod."""

    async def list_guests(self, node: str) -> list[Guest]:
        """The pods on a node."""

    async def list_hosting(self, node: str) -> list[HostingNode]:
        """The current node in a list, which is empty if the node does not exist."""

    async def list_budgets(self) -> list[DisruptionBudget]:
        """Every PodDisruptionBudget."""


class Unmovable(dict[str, str]):
    """Reasons by UID why pods cannot be moved now. ``by_budget``: whether a PodDisruptionBudget is one of the reasons."""

    by_budget = False


class MoveChecker:
    """Checks planned moves against the API server's current state."""

    def __init__(self, view: ClusterCache, pods: PodReader, targets: MoveTargets, quotas: PodQuotas) -> None:
        self._view = view
        self._pods = pods
        self._targets = targets
        self._quotas = quotas

    async def check(self, outlook: Outlook, unmovable: Unmovable) -> dict[str, Guest] | None:
        """The pods to be moved, by UID, if all moves are allowed; otherwise ``None``, with the reasons added to ``unmovable``."""
        guests: dict[str, Guest] = {}
        guests_by_node: dict[str, list[Guest]] = {}
        for move in outlook.moves:
            record = self._view.bound.get(move.pod)
            guest = None if record is None else await self._read(record)
            if record is None or guest is None:
                unmovable[move.pod] = "it is terminating, is gone, or may no longer be moved"
                continue
            reason = await self._objection(record, guest, move, guests_by_node)
            if reason:
                unmovable[move.pod] = reason
                log_fields = about(pod=guest.key, uid=move.pod, node=move.target.node)
                logger.info("pod %s is not moved to %s: %s", guest.key, move.target, reason, extra=log_fields)
                continue
            guests[move.pod] = guest
        if len(guests) < len(outlook.moves):
            return None
        protected_uids = protected(guests.values(), await self._pods.list_budgets())
        if not protected_uids:
            return guests
        unmovable.update(dict.fromkeys(protected_uids, "its PodDisruptionBudget"))
        unmovable.by_budget = True
        return None

    async def _read(self, record: PodRecord) -> Guest | None:
        namespace, _, name = record.pod.partition("/")
        try:
            guest = await self._pods.get_guest(namespace, name)
        except ApiError as error:
            if error.not_found:
                return None
            raise
        unchanged = guest.metadata.uid == record.uid and guest.metadata.deletion_timestamp is None
        # The watch may not have reported a new annotation yet.
        annotation = (guest.metadata.annotations or {}).get(names.ANN_DEFRAGMENTATION, "true")
        return guest if unchanged and annotation == "true" else None

    async def _objection(
        self, record: PodRecord, guest: Guest, move: Move, guests_by_node: dict[str, list[Guest]]
    ) -> str:
        """Why a replacement may not run on the target; empty if it may. ``guests_by_node`` includes pods moved there by earlier moves."""
        node = move.target.node
        refusal = self._targets.objection(guest, node) or self._quotas.again(record)
        if refusal:
            return refusal
        hosting = await self._pods.list_hosting(node)
        if not hosting:
            return f"node {node} is gone"
        if node not in guests_by_node:
            guests_by_node[node] = [
                other for other in await self._pods.list_guests(node) if not other.finished
            ]
        reason = objection(guest, hosting[0], guests_by_node[node], new=node != move.source.node)
        guests_by_node[node].append(guest)
        return reason
