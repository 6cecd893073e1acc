"""Handles the kubelet's calls for shares of GPUs: which IDs to take, and what a container gets with them.

One call at a time, over all resources: a grant is recorded before the next call is handled. No call waits for a write: a grant
can be reconstructed from the kubelet's pod resources and the pod's record, so the record is corrected afterwards
(``reconcile``), and an unavailable API server delays only pods that this process has never seen.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, TypeVar

from gpushare.api import names
from gpushare.api.node.modes import NodeMode
from gpushare.api.objects import Pod
from gpushare.kube.backoff import Backoff
from gpushare.kube.client.errors import KubeError
from gpushare.kube.clock import Clock
from gpushare.kube.event_recorder import Recorder
from gpushare.nodeagent.allocate.container_response import Backend, Grant, Injection, core_envs, memory_envs
from gpushare.nodeagent.allocate.grant_log import UNLISTED_GRACE_S, Slot
from gpushare.nodeagent.allocate.matcher import AllocateMatcher, Match, refusal
from gpushare.nodeagent.allocate.node_allocations import NodeAllocations
from gpushare.nodeagent.allocate.pod_allocations import BoundPod, amount_text, has_all
from gpushare.nodeagent.errors import AllocationRefused, PodResourcesUnavailable
from gpushare.nodeagent.observability.metrics import Metrics
from gpushare.nodeagent.reconcile.pod_handler import PodsOnNode
from gpushare.nodeagent.reconcile.pod_resources import Listing
from gpushare.nodeagent.runtime.cdi.gpu_access import Access
from gpushare.process.log_setup import about

logger = logging.getLogger(__name__)

REASON_REFUSED: Final = "FailedGPUAllocation"
REASON_NO_BURST: Final = "GPUMemoryLimitIgnored"

#: How long a call may wait, in seconds: for a live list of the node's pods (or, before it is refused, for the kubelet's list at
#: all), and for the kubelet's list otherwise.
LIVE_LIST_S: Final = 2.0
KUBELET_LIST_S: Final = 1.0
#: How long a pod that a list has shown may be missing from the watch, in seconds, until the pods are listed again.
SHOWN_S: Final = 10.0
#: The most pods without a decision that a refusal names.
_MOST_NAMED: Final = 3

AllocateFn = Callable[[str, Sequence[Sequence[str]]], Awaitable[list[Injection]]]
_T = TypeVar("_T")


class GiveAccess(Protocol):
    """That of ``GpuAccess.give``."""

    def __call__(self, uuids: Sequence[str], *, in_place: bool = False) -> Access:
        """How a container gets these GPUs (UUIDs); raises ``AllocationRefused``."""


class Allocator:
    """Allocates memory and compute of a node's GPUs. ``list_pods`` lists the node's pods at the API server."""

    def __init__(
        self,
        book: NodeAllocations,
        pods: PodsOnNode,
        *,
        list_pods: Callable[[], Awaitable[list[Pod]]],
        listing: Listing,
        backend_of: Callable[[NodeMode], Backend],
        give: GiveAccess,
        events: Recorder,
        metrics: Metrics,
        clock: Clock,
        on_answer: Callable[[], None],
    ) -> None:
        self._book = book
        self._matcher = AllocateMatcher(book)
        self._pods = pods
        self._list_pods = list_pods
        self._listing = listing
        self._backend_of = backend_of
        self._give = give
        self._events = events
        self._metrics = metrics
        self._clock = clock
        self._on_answer = on_answer
        self._turn = asyncio.Lock()
        self._refused_at_s: dict[str, float] = {}
        """When pods without a decision were refused (by UID): the same kubelet does not admit them again."""

    async def prefer(
        self, resource: str, amount: int, available: Sequence[str], must: Sequence[str]
    ) -> list[str]:
        """The IDs to take, all on the GPUs that were decided; raises ``AllocationRefused``."""
        async with self._turn:
            try:
                return await self._decide(
                    resource,
                    amount,
                    lambda: self._matcher.prefer(resource, amount, available, must, self._clock.monotonic()),
                )
            except AllocationRefused as refusal:
                raise self.refused(resource, amount, refusal) from None

    async def allocate(self, resource: str, containers: Sequence[Sequence[str]]) -> list[Injection]:
        """What each of ``containers`` gets with its IDs; all or none. Raises ``AllocationRefused``."""
        return await self.in_turn(resource, containers, self._shares)

    async def in_turn(
        self, resource: str, containers: Sequence[Sequence[str]], allocate: AllocateFn
    ) -> list[Injection]:
        """Call ``allocate`` while no other call is handled."""
        started_s = self._clock.monotonic()
        async with self._turn:
            injections = await allocate(resource, containers)
        self._metrics.allocations.add(resource, amount=len(injections))
        self._metrics.allocate_seconds.observe(resource, self._clock.monotonic() - started_s)
        self._on_answer()
        return injections

    async def confirm(self) -> None:
        """List pods that the watch does not show again, until cancelled: the watch may never report their end."""
        while True:
            await self._pods.ahead.wait()
            await self._clock.sleep(SHOWN_S)
            if self._pods.ahead.is_set():
                await self._read_pods()

    async def _shares(self, resource: str, containers: Sequence[Sequence[str]]) -> list[Injection]:
        injections, slots = [], []
        try:
            for ids in containers:
                match = await self._match(resource, ids)
                slot = Slot(match.pod.uid, match.container.name, resource)
                self._book.grants.grant(slot, ids, self._clock.monotonic())
                slots.append(slot)
                injections.append(await self._injection(resource, match, ids))
        except AllocationRefused as refusal:
            for slot in slots:
                self._book.grants.revoke(slot)
            raise self.refused(resource, len(ids), refusal) from None
        return injections

    async def _match(self, resource: str, ids: Sequence[str]) -> Match:
        # Checked when these devices were preferred.
        known = self._book.grants.is_preferred(ids)
        match = await self._decide(
            resource, len(ids), lambda: self._matcher.match(resource, ids), known=known
        )
        logger.info(
            "pod %s, container %s: allocated %s of %s%s",
            match.pod.key,
            match.container.name,
            amount_text(resource, len(ids)),
            " and ".join(f"GPU {share.label}" for share in match.shares),
            " (other than decided)" if match.moved else "",
            extra=about(pod=match.pod.key, uid=match.pod.uid),
        )
        return match

    async def _decide(
        self, resource: str, amount: int, decide: Callable[[], _T], *, known: bool = False
    ) -> _T:
        """Call ``decide`` once it is known which pods it may be for; refresh everything before refusing."""
        try:
            if not known:
                await self._learn_candidates(resource, amount)
            return decide()
        except AllocationRefused:
            # The kubelet records a grant before its next call. One that it does not list was for a pod that was deleted
            # meanwhile and mistaken for this one, or was lost with an earlier kubelet.
            kubelet_lists, current = await asyncio.gather(self._await_kubelet(), self._read_pods())
            try:
                self._check(resource, amount, kubelet_lists=kubelet_lists, current=current)
            except AllocationRefused as refused:
                if kubelet_lists and current and not self._matcher.lists_any(resource, amount):
                    self._note_refused(refused.pods)
                raise
            return decide()

    async def _learn_candidates(self, resource: str, amount: int) -> None:
        """Learn what distinguishes a pod that was bound by hand from a decided pod with the same request.

        Their ``Allocate`` looks the same. But the kubelet admits one pod after the other and lists the one that it is
        admitting, without devices. (Before 1.34 it also lists those that it has just rejected.)
        """
        kubelet_lists, current = await self._read_kubelet(), False
        if (
            not self._matcher.lists_any(resource, amount)
            or not self._pods.knows(self._book.grants.without_devices())
            or self._undecided(resource, amount, kubelet_lists=kubelet_lists)
        ):
            current = await self._read_pods()
        self._check(resource, amount, kubelet_lists=kubelet_lists, current=current)

    def _check(self, resource: str, amount: int, *, kubelet_lists: bool, current: bool) -> None:
        """Raise ``AllocationRefused`` if the pod that is admitted may be one without a decision.

        ``kubelet_lists``: the kubelet has just listed its pods; ``current``: the API server has.
        """
        undecided = self._undecided(resource, amount, kubelet_lists=kubelet_lists)
        known = kubelet_lists and self._matcher.lists_any(resource, amount)
        # A decided pod in the kubelet's list is not enough: before 1.34 it may be one that was rejected a moment ago.
        seen = kubelet_lists and self._pods.knows(self._book.grants.without_devices())
        if undecided or not (seen or current):
            problem = (
                f"{amount_text(resource, amount)} may be for a pod that gpushare did not schedule"
                if known or not undecided
                else refusal(self._book.node, resource, amount, {}, ()).problem
            )
            raise AllocationRefused("", problem, tuple(pod.uid for pod in undecided))

    def _note_refused(self, uids: Sequence[str]) -> None:
        """Remember the pod that was refused, if it can only be one."""
        there = self._pods.uids()
        kept = {one: at_s for one, at_s in self._refused_at_s.items() if one in there}
        if len(uids) == 1 and (pod := self._pods.pod(uids[0])) and self._book.grants.lists(pod.key):
            kept[pod.uid] = self._clock.monotonic()
        self._refused_at_s = kept

    def _undecided(self, resource: str, amount: int, *, kubelet_lists: bool) -> list[BoundPod]:
        """Pods without a decision that the kubelet may be admitting; ``kubelet_lists``: it has just listed its pods."""
        grants = self._book.grants
        since_s = grants.registered_at_s(resource)
        found = [
            pod
            for pod in self._pods.undecided(resource, amount)
            if not has_all(pod.request, resource, grants.listed(pod.key))
            and self._refused_at_s.get(pod.uid, float("-inf")) <= since_s
        ]
        if kubelet_lists and (listed := [pod for pod in found if grants.lists(pod.key)]):
            return listed
        if kubelet_lists and self._matcher.lists_any(resource, amount):
            return []
        return [pod for pod in found if not pod.running]

    async def _await_kubelet(self) -> bool:
        """Whether it lists its pods: one that is starting may call us a moment before it serves its list."""
        again, until_s = Backoff(0.05, 0.5), self._clock.monotonic() + LIVE_LIST_S
        while not await self._read_kubelet(grace_s=0.0):
            if self._clock.monotonic() >= until_s:
                return False
            await self._clock.sleep(again.next_s())
        return True

    async def _read_pods(self) -> bool:
        """Whether the API server lists the pods of this node."""
        try:
            async with asyncio.timeout(LIVE_LIST_S):
                await self._pods.read(self._list_pods)
        except (KubeError, TimeoutError) as error:
            logger.warning("cannot list the pods of this node: %s", error)
            return False
        return True

    async def _read_kubelet(self, grace_s: float = UNLISTED_GRACE_S) -> bool:
        requested_at_s = self._clock.monotonic()
        try:
            listing = await self._listing.read(KUBELET_LIST_S)
            for slot in self._book.grants.observe(listing, requested_at_s, grace_s=grace_s):
                logger.info(
                    "container %s (pod UID %s) does not have the devices that were granted",
                    slot.container,
                    slot.uid,
                    extra=about(pod=self._named(slot.uid), uid=slot.uid),
                )
        except PodResourcesUnavailable as error:
            logger.warning("%s", error)
            return False
        return True

    async def _injection(self, resource: str, match: Match, ids: Sequence[str]) -> Injection:
        request = match.pod.request
        backend = self._backend_of(self._book.node.mode)
        grant = Grant(
            pod=match.pod.key,
            uid=match.pod.uid,
            container=match.container.name,
            shares=match.shares,
            pod_units=sum(
                request.allocated_units(request.memory_units, share.device_units) for share in match.shares
            ),
            mode=self._book.node.mode,
            ids=tuple(ids),
            compute_class=match.pod.bound.compute_class,
            limit_mib=self._limit_mib(match, backend),
        )
        if resource == names.GPU_CORE:
            # The kubelet merges the responses for both resources; that for memory names the GPU.
            return Injection(envs=core_envs(grant))
        in_place = backend.in_place
        try:
            access = self._give([share.uuid for share in match.shares], in_place=in_place)
            added = await backend.inject(grant, in_place=in_place)
        except AllocationRefused as refusal:
            raise AllocationRefused(refusal.subject, refusal.problem, (match.pod.uid,)) from None
        return Injection(
            memory_envs(grant) | added.envs,
            added.mounts,
            (*access.devices, *added.devices),
            added.annotations | dict(access.annotations or {}),
            (*access.cdi_devices, *added.cdi_devices),
        )

    def _limit_mib(self, match: Match, backend: Backend) -> int:
        """How much of its GPU the container may use while that is free; 0: its share."""
        limit_mib = match.pod.bound.memory_limits_mib.get(match.container.name, 0)
        if not limit_mib or len(match.shares) != 1 or limit_mib <= match.shares[0].mib:
            return 0
        if backend.may_burst:
            return limit_mib
        mode = self._book.node.mode.value
        self._events.record(
            match.pod.bound.reference,
            kind="Warning",
            reason=REASON_NO_BURST,
            action="Allocating",
            note=f"annotation {names.ANN_GPU_MEMORY_LIMIT} has no effect on node {self._book.node.name}: in mode {mode} its isolation cannot "
            f"let container {match.container.name} use more than it requests while the GPU has it free",
            occurrence="lasting",
        )
        return 0

    def _named(self, uid: str) -> str:
        """``namespace/name`` of a pod of this node; empty if unknown."""
        pod = self._pods.pod(uid)
        return "" if pod is None else pod.key

    def refused(self, resource: str, amount: int, refusal: AllocationRefused) -> AllocationRefused:
        """``refusal`` with what to do about it, counted, logged, and reported as an event of the pods that it may concern."""
        self._metrics.allocation_failures.add(resource)
        undecided = [pod for pod in self._pods.undecided(resource, amount) if not pod.running]
        text = refusal.problem
        if undecided:
            named = ", ".join(pod.key for pod in undecided[:_MOST_NAMED])
            text += f"; no GPU was allocated to {named}: set spec.schedulerName to {names.SCHEDULER_NAME}"
        # A line for each pod: a search for any of them finds it.
        uids = dict.fromkeys((*refusal.pods, *(pod.uid for pod in undecided[:_MOST_NAMED])))
        for uid in uids or [""]:
            logger.error("refused: %s", text, extra=about(pod=self._named(uid), uid=uid))
        known = [pod for uid in refusal.pods if (pod := self._pods.pod(uid)) is not None]
        for pod in known or undecided[:1]:
            self._events.record(
                pod.reference, kind="Warning", reason=REASON_REFUSED, action="Allocating", note=text
            )
        return AllocationRefused(refusal.subject, text, refusal.pods)
