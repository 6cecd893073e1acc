"""What is written for ResourcePolicies beside Bindings: their status, and the deletion costs of pods.

Both follow from what is seen, so they are the same whoever writes them, and are written again until they are seen. Most
pods get their cost with their Binding; what is left are pods that were there before the policy, policies that change, and
costs whose policy is gone. Of two schedulers the one whose kube-scheduler leads writes.
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
#: Seconds that a write is given to be seen, before it is made again.
_SEEN_S: Final = 10.0
_AT_ONCE: Final = 64
_SIDE_BY_SIDE: Final = 8
_MARK: Final = names.ANN_COST_WRITTEN.encode()


class _Meta(msgspec.Struct):
    namespace: str = ""


class _Head(msgspec.Struct):
    metadata: _Meta


_HEAD: Final = msgspec.json.Decoder(_Head)


class Api(PodWriter, Protocol):
    """What is asked of the API server (``gpushare.kube.client.client.Client``); all methods raise ``KubeError``."""

    async def write_policy_status(self, namespace: str, name: str, status: object) -> None:
        """Replace fields of a policy's status."""

    async def lease_holder(self, namespace: str, name: str) -> str:
        """Who holds a Lease."""

    async def list_pods(self, *, namespace: str | None = None) -> list[Pod]:
        """All pods of a namespace."""


class PolicyWriter:
    """``ready`` tells whether all policies were read. ``lease`` (namespace, name) is that of the kube-scheduler beside us; ``None``: there is no other."""

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
        """Write what is due, for ever; after a failure with longer and longer waits."""
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
        """Write what is due once; raises ``KubeError`` at the first failure that may pass."""
        if not self._ready():
            return
        now_s = self._clock.monotonic()
        statuses = self._statuses_due(now_s)
        costs = self._costs_due(now_s)
        strays = [one for one in self._policies.strays if one not in self._policies.census.namespaces]
        self._policies.strays.intersection_update(strays)
        if not (statuses or costs or strays) or not await self._leading.leads():
            return
        for policy, status in statuses:
            await self._write_status(policy, status, now_s)
        await self._write_costs(costs, now_s)
        for namespace in strays:
            # Before the list: a pod that is seen with a cost while others are seen to may not be in it.
            self._policies.strays.discard(namespace)
            try:
                await self._clean(namespace)
            except KubeError:
                self._policies.strays.add(namespace)
                raise

    # --- status -----------------------------------------------------------------------------------

    def _statuses_due(self, now_s: float) -> list[tuple[ResourcePolicy, dict[str, Any]]]:
        found: list[tuple[ResourcePolicy, dict[str, Any]]] = []
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
            if len(found) < _AT_ONCE:
                found.append((policy, status))
        self._written = {uid: one for uid, one in self._written.items() if uid in known}
        return found

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
        found: list[str] = []
        for uid in census.costly:
            if len(found) == _AT_ONCE:
                break
            pod = census.pod(uid)
            if uid not in self._costs and pod is not None and pod.namespace not in self._policies.unread:
                found.append(uid)
        return found

    async def _write_costs(self, uids: list[str], now_s: float) -> None:
        for start in range(0, len(uids), _SIDE_BY_SIDE):
            await asyncio.gather(
                *(self._write_cost(uid, now_s) for uid in uids[start : start + _SIDE_BY_SIDE])
            )

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
        """Look at a pod's JSON that passes by: it may have a cost whose policy went while nobody looked."""
        if _MARK in raw:
            namespace = _HEAD.decode(raw).metadata.namespace
            if namespace not in self._policies.census.namespaces:
                self._policies.strays.add(namespace)

    async def _clean(self, namespace: str) -> None:
        """Take our costs off the pods of a namespace that has no policy."""
        for pod in await self._api.list_pods(namespace=namespace):
            if namespace in self._policies.census.namespaces:
                break  # there is one again
            if names.ANN_COST_WRITTEN in (pod.metadata.annotations or {}):
                # A cost that somebody has changed since stays, without our mark.
                changes = cost_annotations(policy_pod_of(pod), None) or {names.ANN_COST_WRITTEN: None}
                await self._annotate(namespace, pod.metadata.name, pod.metadata.uid, changes)


def status_of(book: PolicyBook) -> dict[str, Any]:
    """What a policy's ``status`` says: how many pods each unit holds, which have no node though none is waited for, and who does not go by it."""
    policy, pods = book.policy, book.pods_in()
    ends = [
        f"{'' if unit.most_pods is None else f'/{unit.most_pods}'}{' (no node)' if nodeless and not unit.waits else ''}"
        for unit, nodeless in zip(policy.units, book.without_nodes(), strict=True)
    ]
    strays = len(book.strays)
    message = others_text(strays, capped=any(unit.is_capped for unit in policy.units)) if strays else ""
    # Where there is none it is not named: a definition that is older than the field drops it, for ever anew.
    told = {"message": message} if message or "message" in (policy.status or {}) else {}
    return told | {
        "observedGeneration": policy.generation,
        "pods": sum(pods),
        "units": [
            {"resource": unit.kind.value, "pods": count}
            for unit, count in zip(policy.units, pods, strict=True)
        ],
        "summary": ", ".join(f"{count}{end}" for count, end in zip(pods, ends, strict=True)),
    }
