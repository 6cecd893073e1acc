"""Whether pods may be moved to where the planner would have them go, as the cluster stands at this moment.

The planner (``gpushare.planning.defragmentation``) knows GPUs alone. Who is to move must be there yet, its new node must take it, its ResourcePolicy
and its elastic quotas must let it in again, and its disruption budgets must let it go.
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


class Guests(Protocol):
    """What is asked of the API server (``gpushare.kube.client.client.Client``); all methods raise ``KubeError``."""

    async def get_guest(self, namespace: str, name: str) -> Guest:
        """The pod as it is."""

    async def list_guests(self, node: str) -> list[Guest]:
        """The pods of a node."""

    async def list_hosting(self, node: str) -> list[HostingNode]:
        """The node as it is, or none."""

    async def list_budgets(self) -> list[DisruptionBudget]:
        """Every PodDisruptionBudget."""


class Barred(dict[str, str]):
    """UIDs of pods that cannot be moved now, and why; ``by_budget``: one of them for its budget's sake."""

    by_budget = False


class Movable:
    """Asks about pods that are to be moved."""

    def __init__(self, view: ClusterCache, pods: Guests, places: MoveTargets, quotas: PodQuotas) -> None:
        self._view = view
        self._pods = pods
        self._places = places
        self._quotas = quotas

    async def bar(self, found: Outlook, barred: Barred) -> dict[str, Guest] | None:
        """Who moves, as they are, if all of them may and each target would take its pod; else who may not is in ``barred``."""
        guests: dict[str, Guest] = {}
        there: dict[str, list[Guest]] = {}
        for move in found.moves:
            record = self._view.bound.get(move.pod)
            guest = None if record is None else await self._read(record)
            if record is None or guest is None:
                barred[move.pod] = "it ends, is gone, or is not to be moved any more"
                continue
            why = await self._objection(record, guest, move, there)
            if why:
                barred[move.pod] = why
                about_it = about(pod=guest.key, uid=move.pod, node=move.target.node)
                logger.info("pod %s is not moved to %s: %s", guest.key, move.target, why, extra=about_it)
                continue
            guests[move.pod] = guest
        if len(guests) < len(found.moves):
            return None
        guarded = protected(guests.values(), await self._pods.list_budgets())
        if not guarded:
            return guests
        barred.update(dict.fromkeys(guarded, "its PodDisruptionBudget"))
        barred.by_budget = True
        return None

    async def _read(self, record: PodRecord) -> Guest | None:
        namespace, _, name = record.pod.partition("/")
        try:
            guest = await self._pods.get_guest(namespace, name)
        except ApiError as error:
            if error.not_found:
                return None
            raise
        same = guest.metadata.uid == record.uid and guest.metadata.deletion_timestamp is None
        # What its owner has just written may not have been told yet.
        wish = (guest.metadata.annotations or {}).get(names.ANN_DEFRAGMENTATION, "true")
        return guest if same and wish == "true" else None

    async def _objection(
        self, record: PodRecord, guest: Guest, move: Move, there: dict[str, list[Guest]]
    ) -> str:
        """Why a pod like it may not have the place; ``there``: who is on the nodes looked at, and comes to them."""
        node = move.target.node
        refusal = self._places.objection(guest, node) or self._quotas.again(record)
        if refusal:
            return refusal
        hosting = await self._pods.list_hosting(node)
        if not hosting:
            return f"node {node} is gone"
        if node not in there:
            there[node] = [one for one in await self._pods.list_guests(node) if not one.finished]
        why = objection(guest, hosting[0], there[node], new=node != move.source.node)
        there[node].append(guest)
        return why
