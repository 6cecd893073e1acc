"""Writes the status of ResourcePolicies and the deletion costs of pods.

Both are derived from the watched state, so every replica computes the same, and a write is repeated until the watch shows it. Most
pods get their cost with their Binding. The rest is written here: costs of pods that are older than the policy, costs after a change of
the policy, and removals of costs whose policy was deleted. Only the leader's extender writes.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from gpushare.api import names
from gpushare.api.crd.resource_policy import ResourcePolicy, others_text, policy_pod_of
from gpushare.api.objects import Pod
from gpushare.kube.backoff import Backoff
from gpushare.kube.client.errors import ApiError, KubeError
from gpushare.kube.clock import Clock
from gpushare.process.log_setup import about
from gpushare.scheduler.leader.lease import Leading
from gpushare.scheduler.plugins.resource_policy.model.policy_index import cost_annotations
from gpushare.scheduler.plugins.resource_policy.model.unit_usage import PolicyBook
from gpushare.scheduler.plugins.resource_policy.plugin import Policies
from gpushare.scheduler.plugins.resource_policy.prebind import Pods as PodWriter

logger = logging.getLogger(__name__)

_EVERY_S: Final = 1.0
#: Seconds until a write that the watch has not shown is repeated.
_SEEN_S: Final = 10.0
_AT_ONCE: Final = 64
_CONCURRENT: Final = 8
_MARK: Final = names.ANN_COST_WRITTEN.encode()


class _Meta(msgspec.Struct):
    namespace: str = ""


class _Head(msgspec.Struct):
    metadata: _Meta


_HEAD: Final = msgspec.json.Decoder(_Head)


class Api(PodWriter, Protocol):
    """API server requests (``gpushare.kube.client.client.Client``); all methods raise ``KubeError``."""

    async def write_policy_status(self, namespace: str, name: str, status: object) -> None:
        """Replace fields of a policy's status."""

    async def lease_holder(self, namespace: str, name: str) -> str:
        """The holder of a Lease, empty if there is none."""

    async def list_pods(self, *, namespace: str | None = None) -> list[Pod]:
        """All pods of a namespace."""


class PolicyWriter:
    """Writes statuses and costs.

    ``ready``: whether all policies were listed. ``lease`` (namespace, name): the Lease of our kube-scheduler; ``None``: there is only one replica.
    """

    def __init__(
        self,
        policies: Policies,
        api: Api,
        clock: Clock,
        *,
        ready: Callable[[], bool],
        lease: tuple[str, str] | None = None,
    ) -> None:
        self._policies = policies
        self._ready = ready
        self._api = api
        self._clock = clock
        self._leading = Leading(api, lease)
        self._written: dict[str, tuple[dict[str, Any], float]] = {}
        self._costs: dict[str, float] = {}
        self._backoff = Backoff(first_s=_EVERY_S)

    async def run(self) -> None:
        """Write what is due, until cancelled; with exponential backoff after failures."""
        wait_s = _EVERY_S
        while True:
            await self._clock.sleep(wait_s)
            try:
                await self.write_due()
            except KubeError as error:
                wait_s = self._backoff.next_s()
                logger.warning("ResourcePolicies: %s; writing again in %.1f s", error, wait_s)
            else:
                self._backoff.reset()
                wait_s = _EVERY_S

    async def write_due(self) -> None:
        """Write what is due now; raises ``KubeError`` at the first failure that may be temporary."""
        if not self._ready():
            return
        now_s = self._clock.monotonic()
        statuses = self._statuses_due(now_s)
        costs = self._costs_due(now_s)
        strays = [
            namespace
            for namespace in self._policies.strays
            if namespace not in self._policies.census.namespaces
        ]
        self._policies.strays.intersection_update(strays)
        if not (statuses or costs or strays) or not await self._leading.leads():
            return
        for policy, status in statuses:
            await self._write_status(policy, status, now_s)
        await self._write_costs(costs, now_s)
        for namespace in strays:
            # Before the list: a pod that is seen with a cost during the cleaning may not be in the list.
            self._policies.strays.discard(namespace)
            try:
                await self._clean(namespace)
            except KubeError:
                self._policies.strays.add(namespace)
                raise

    # --- status -----------------------------------------------------------------------------------

    def _statuses_due(self, now_s: float) -> list[tuple[ResourcePolicy, dict[str, Any]]]:
        due: list[tuple[ResourcePolicy, dict[str, Any]]] = []
        known: set[str] = set()
        for book in self._policies.census.books():
            policy = book.policy
            known.add(policy.uid)
            if policy.namespace in self._policies.unread:
                continue
            status = status_of(book)
            written, at_s = self._written.get(policy.uid, (None, 0.0))
            if status == policy.status or (status == written and now_s < at_s + _SEEN_S):
                continue
            if len(due) < _AT_ONCE:
                due.append((policy, status))
        self._written = {uid: write for uid, write in self._written.items() if uid in known}
        return due

    async def _write_status(self, policy: ResourcePolicy, status: dict[str, Any], now_s: float) -> None:
        try:
            await self._api.write_policy_status(policy.namespace, policy.name, status)
        except ApiError as error:
            if error.passing:
                raise
            logger.info("ResourcePolicy %s: its status is not written: %s", policy.key, error)
        self._written[policy.uid] = (status, now_s)

    # --- deletion costs ---------------------------------------------------------------------------

    def _costs_due(self, now_s: float) -> list[str]:
        census = self._policies.census
        self._costs = {uid: at_s for uid, at_s in self._costs.items() if now_s < at_s + _SEEN_S}
        due: list[str] = []
        for uid in census.costly:
            if len(due) == _AT_ONCE:
                break
            pod = census.pod(uid)
            if uid not in self._costs and pod is not None and pod.namespace not in self._policies.unread:
                due.append(uid)
        return due

    async def _write_costs(self, uids: list[str], now_s: float) -> None:
        for start in range(0, len(uids), _CONCURRENT):
            await asyncio.gather(*(self._write_cost(uid, now_s) for uid in uids[start : start + _CONCURRENT]))

    async def _write_cost(self, uid: str, now_s: float) -> None:
        census = self._policies.census
        pod, changes = census.pod(uid), census.cost_changes(uid)
        if pod is not None and changes:
            await self._annotate(pod.namespace, pod.name, uid, changes)
            self._costs[uid] = now_s

    async def _annotate(self, namespace: str, name: str, uid: str, changes: dict[str, str | None]) -> None:
        try:
            await self._api.annotate_pod(namespace, name, changes, uid=uid)
        except ApiError as error:
            if error.passing:
                raise
            key = f"{namespace}/{name}"
            about_it = about(pod=key, uid=uid)
            logger.info("pod %s: its deletion cost is not written: %s", key, error, extra=about_it)

    # --- costs whose policy is gone -----------------------------------------------------------------

    def notice(self, raw: bytes) -> None:
        """Check a pod's JSON for a cost whose policy was deleted while no scheduler was running."""
        if _MARK in raw:
            namespace = _HEAD.decode(raw).metadata.namespace
            if namespace not in self._policies.census.namespaces:
                self._policies.strays.add(namespace)

    async def _clean(self, namespace: str) -> None:
        """Remove the costs that we wrote from the pods of a namespace without policies."""
        for pod in await self._api.list_pods(namespace=namespace):
            if namespace in self._policies.census.namespaces:
                break  # the namespace has a policy again
            if names.ANN_COST_WRITTEN in (pod.metadata.annotations or {}):
                # A cost that was changed by others since stays; only our mark is removed.
                changes = cost_annotations(policy_pod_of(pod), None) or {names.ANN_COST_WRITTEN: None}
                await self._annotate(namespace, pod.metadata.name, pod.metadata.uid, changes)


def status_of(book: PolicyBook) -> dict[str, Any]:
    """A policy's ``status``: the pods in each unit, units that unexpectedly have no nodes, and pods that bypass the policy."""
    policy, pods = book.policy, book.pods_in()
    suffixes = [
        f"{'' if unit.most_pods is None else f'/{unit.most_pods}'}{' (no node)' if nodeless and not unit.waits else ''}"
        for unit, nodeless in zip(policy.units, book.without_nodes(), strict=True)
    ]
    strays = len(book.strays)
    message = others_text(strays, capped=any(unit.is_capped for unit in policy.units)) if strays else ""
    # An empty message is left out unless one is set: an older CRD drops the field, so the status would be written again and again.
    message_field = {"message": message} if message or "message" in (policy.status or {}) else {}
    return message_field | {
        "observedGeneration": policy.generation,
        "pods": sum(pods),
        "units": [
            {"resource": unit.kind.value, "pods": count}
            for unit, count in zip(policy.units, pods, strict=True)
        ],
        "summary": ", ".join(f"{count}{suffix}" for count, suffix in zip(pods, suffixes, strict=True)),
    }
