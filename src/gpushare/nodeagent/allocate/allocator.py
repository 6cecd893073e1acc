"""Answers the kubelet for shares of GPUs: which IDs to take, and what a container gets with them.

One call at a time, over all resources: an answer is noted before the next question is looked at. An answer
waits for no write. What it decides can be read again from the kubelet's pod resources and the pod's record,
so the record is brought up to date afterwards (``reconcile``), and an API server that is away delays nothing
but pods that this process has never seen.
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
from gpushare.nodeagent.allocate import refusal_texts
from gpushare.nodeagent.allocate.container_response import Backend, Grant, Injection, core_envs, memory_envs
from gpushare.nodeagent.allocate.grant_log import UNLISTED_GRACE_S, Slot
from gpushare.nodeagent.allocate.matcher import ClaimBook, Match
from gpushare.nodeagent.allocate.pod_allocations import BoundPod
from gpushare.nodeagent.allocate.requested_devices import has_all, worded
from gpushare.nodeagent.errors import ClaimRefused, PodResourcesUnavailable
from gpushare.nodeagent.observability.metrics import Metrics
from gpushare.nodeagent.reconcile.pod_handler import PodsOnNode
from gpushare.nodeagent.reconcile.pod_resources import Listing
from gpushare.nodeagent.runtime.cdi.gpu_access import Access
from gpushare.process.log_setup import about

logger = logging.getLogger(__name__)

REASON_REFUSED: Final = "FailedGPUAllocation"

#: Bounds of what an answer may wait for, in seconds: a live list of the node's pods (or, before it is a refusal, for
#: the kubelet to answer at all), the kubelet's own list.
LIVE_LIST_S: Final = 2.0
KUBELET_LIST_S: Final = 1.0
#: How long the watch is given to show a pod that a list has named, until the pod is asked for again.
SHOWN_S: Final = 10.0
#: Of pods that nobody has decided for, so many are named in a refusal.
_MOST_NAMED: Final = 3

AnswerFn = Callable[[str, Sequence[Sequence[str]]], Awaitable[list[Injection]]]
_T = TypeVar("_T")


class Giving(Protocol):
    """How a container gets its GPU (``gpushare.nodeagent.runtime.cdi.gpu_access.GpuAccess.give``)."""

    def __call__(self, uuids: Sequence[str], *, in_place: bool = False) -> Access:
        """What a container with these GPUs gets; raises ``ClaimRefused``."""


class Allocator:
    """Decides for the memory and compute of a node's GPUs. ``list_pods`` reads the node's pods from the API server."""

    def __init__(
        self,
        book: ClaimBook,
        pods: PodsOnNode,
        *,
        list_pods: Callable[[], Awaitable[list[Pod]]],
        listing: Listing,
        backend_of: Callable[[NodeMode], Backend],
        give: Giving,
        events: Recorder,
        metrics: Metrics,
        clock: Clock,
        on_answer: Callable[[], None],
    ) -> None:
        self._book = book
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
        self._turned_away: dict[str, float] = {}
        """When undecided pods were refused (by UID): the same kubelet asks for none of them again."""

    async def prefer(
        self, resource: str, amount: int, available: Sequence[str], must: Sequence[str]
    ) -> list[str]:
        """The IDs that the kubelet should take, all on the GPUs that were decided; raises ``ClaimRefused``."""
        async with self._turn:
            try:
                return await self._decide(
                    resource,
                    amount,
                    lambda: self._book.prefer(resource, amount, available, must, self._clock.monotonic()),
                )
            except ClaimRefused as refusal:
                raise self.refused(resource, amount, refusal) from None

    async def allocate(self, resource: str, containers: Sequence[Sequence[str]]) -> list[Injection]:
        """What each of ``containers`` gets with its IDs; all or none. Raises ``ClaimRefused``."""
        return await self.in_turn(resource, containers, self._shares)

    async def in_turn(
        self, resource: str, containers: Sequence[Sequence[str]], answer: AnswerFn
    ) -> list[Injection]:
        """``answer``, while no other is given."""
        started_s = self._clock.monotonic()
        async with self._turn:
            answers = await answer(resource, containers)
        self._metrics.allocations.add(resource, amount=len(answers))
        self._metrics.allocate_seconds.observe(resource, self._clock.monotonic() - started_s)
        self._on_answer()
        return answers

    async def confirm(self) -> None:
        """See until cancelled that pods which a list alone has named are still there: the watch may never show their end."""
        while True:
            await self._pods.ahead.wait()
            await self._clock.sleep(SHOWN_S)
            if self._pods.ahead.is_set():
                await self._read_pods()

    async def _shares(self, resource: str, containers: Sequence[Sequence[str]]) -> list[Injection]:
        answers, slots = [], []
        try:
            for ids in containers:
                match = await self._match(resource, ids)
                slot = Slot(match.claim.uid, match.container.name, resource)
                self._book.answers.grant(slot, ids, self._clock.monotonic())
                slots.append(slot)
                answers.append(await self._injection(resource, match, ids))
        except ClaimRefused as refusal:
            for slot in slots:
                self._book.answers.revoke(slot)
            raise self.refused(resource, len(ids), refusal) from None
        return answers

    async def _match(self, resource: str, ids: Sequence[str]) -> Match:
        # It was looked when these devices were named.
        known = self._book.answers.has_told(ids)
        match = await self._decide(resource, len(ids), lambda: self._book.match(resource, ids), known=known)
        logger.info(
            "pod %s, container %s: given %s of %s%s",
            match.claim.pod.key,
            match.container.name,
            worded(resource, len(ids)),
            " and ".join(f"GPU {share.index}" for share in match.shares),
            " (another than was decided)" if match.moved else "",
            extra=about(pod=match.claim.pod.key, uid=match.claim.uid),
        )
        return match

    async def _decide(self, resource: str, amount: int, ask: Callable[[], _T], *, known: bool = False) -> _T:
        """Ask the book, once it is known who may be meant; look once more before it is a refusal."""
        try:
            if not known:
                await self._see_who_is_meant(resource, amount)
            return ask()
        except ClaimRefused:
            # The kubelet notes an answer before it asks again. One that it does not list was for a pod that was
            # deleted meanwhile and taken for this one, or died with an earlier kubelet.
            kubelet_lists, current = await asyncio.gather(self._ask_kubelet(), self._read_pods())
            try:
                self._check(resource, amount, kubelet_lists=kubelet_lists, current=current)
            except ClaimRefused as refused:
                if kubelet_lists and current and not self._book.known(resource, amount):
                    self._turn_away(refused.pods)
                raise
            return ask()

    async def _see_who_is_meant(self, resource: str, amount: int) -> None:
        """Look at what tells a pod that is bound by hand from a decided one that asks for as much.

        In an ``Allocate`` they look the same. But the kubelet admits one pod after the other, and lists the one that it
        is admitting, without its devices. (Before 1.34 it also lists those that it has just rejected.)
        """
        kubelet_lists, current = await self._read_kubelet(), False
        if (
            not self._book.known(resource, amount)
            or not self._pods.knows(self._book.answers.without_devices())
            or self._strangers(resource, amount, kubelet_lists=kubelet_lists)
        ):
            current = await self._read_pods()
        self._check(resource, amount, kubelet_lists=kubelet_lists, current=current)

    def _check(self, resource: str, amount: int, *, kubelet_lists: bool, current: bool) -> None:
        """Raise ``ClaimRefused`` where a pod that nobody has decided for may be the one that is admitted.

        ``kubelet_lists``: the kubelet has just listed its pods; ``current``: the API server has.
        """
        strangers = self._strangers(resource, amount, kubelet_lists=kubelet_lists)
        known = kubelet_lists and self._book.known(resource, amount)
        seen = kubelet_lists and self._pods.knows(self._book.answers.without_devices())
        if strangers or not (known or seen or current):
            problem = (
                f"{worded(resource, amount)} may be for a pod that has no GPU from any scheduler of ours"
                if known or not strangers
                else refusal_texts.refusal(self._book.node, resource, amount, {}, ()).problem
            )
            raise ClaimRefused("", problem, tuple(pod.uid for pod in strangers))

    def _turn_away(self, uids: Sequence[str]) -> None:
        """Remember who was refused, where it can be one alone."""
        there = self._pods.uids()
        kept = {one: at_s for one, at_s in self._turned_away.items() if one in there}
        if len(uids) == 1 and (pod := self._pods.pod(uids[0])) and self._book.answers.lists(pod.key):
            kept[pod.uid] = self._clock.monotonic()
        self._turned_away = kept

    def _strangers(self, resource: str, amount: int, *, kubelet_lists: bool) -> list[BoundPod]:
        """Undecided pods that the kubelet may be admitting; ``kubelet_lists``: it has just listed its pods."""
        answers = self._book.answers
        since_s = answers.registered_at_s(resource)
        found = [
            pod
            for pod in self._pods.undecided(resource, amount)
            if not has_all(pod.request, resource, answers.listed(pod.key))
            and self._turned_away.get(pod.uid, float("-inf")) <= since_s
        ]
        if kubelet_lists and (listed := [pod for pod in found if answers.lists(pod.key)]):
            return listed
        if kubelet_lists and self._book.known(resource, amount):
            return []
        return [pod for pod in found if not pod.running]

    async def _ask_kubelet(self) -> bool:
        """Whether it lists its pods: a kubelet that starts anew may ask a moment before it answers."""
        again, until_s = Backoff(0.05, 0.5), self._clock.monotonic() + LIVE_LIST_S
        while not await self._read_kubelet(grace_s=0.0):
            if self._clock.monotonic() >= until_s:
                return False
            await self._clock.sleep(again.next_s())
        return True

    async def _read_pods(self) -> bool:
        """Whether the API server says which pods are bound to this node."""
        try:
            async with asyncio.timeout(LIVE_LIST_S):
                await self._pods.read(self._list_pods)
        except (KubeError, TimeoutError) as error:
            logger.warning("the API server does not say which pods are bound to this node (%s)", error)
            return False
        return True

    async def _read_kubelet(self, grace_s: float = UNLISTED_GRACE_S) -> bool:
        asked_at_s = self._clock.monotonic()
        try:
            listing = await self._listing.read(KUBELET_LIST_S)
            for slot in self._book.answers.observe(listing, asked_at_s, grace_s=grace_s):
                logger.info(
                    "container %s (pod UID %s) does not have what was answered",
                    slot.container,
                    slot.uid,
                    extra=about(pod=self._named(slot.uid), uid=slot.uid),
                )
        except PodResourcesUnavailable as error:
            logger.warning("%s", error)
            return False
        return True

    async def _injection(self, resource: str, match: Match, ids: Sequence[str]) -> Injection:
        request = match.claim.request
        grant = Grant(
            pod=match.claim.pod.key,
            uid=match.claim.uid,
            container=match.container.name,
            shares=match.shares,
            pod_units=sum(request.given(request.memory_units, share.device_units) for share in match.shares),
            mode=self._book.node.mode,
            ids=tuple(ids),
            compute_class=match.claim.pod.compute_class,
        )
        if resource == names.GPU_CORE:
            # The kubelet merges the answers of both resources; the GPU is told by that of the memory.
            return Injection(envs=core_envs(grant))
        backend = self._backend_of(grant.mode)
        in_place = backend.in_place
        try:
            access = self._give([share.uuid for share in match.shares], in_place=in_place)
            added = await backend.inject(grant, in_place=in_place)
        except ClaimRefused as refusal:
            raise ClaimRefused(refusal.subject, refusal.problem, (match.claim.uid,)) from None
        return Injection(
            memory_envs(grant) | added.envs,
            added.mounts,
            added.devices,
            added.annotations | dict(access.annotations or {}),
            (*access.cdi_devices, *added.cdi_devices),
        )

    def _named(self, uid: str) -> str:
        """Namespace and name of a pod of this node; empty where it is not known."""
        pod = self._pods.pod(uid)
        return "" if pod is None else pod.key

    def refused(self, resource: str, amount: int, refusal: ClaimRefused) -> ClaimRefused:
        """``refusal`` with what people can do, once it is counted, logged and told to the pods that it may be about."""
        self._metrics.allocation_failures.add(resource)
        undecided = [pod for pod in self._pods.undecided(resource, amount) if not pod.running]
        text = refusal.problem
        if undecided:
            named = ", ".join(pod.key for pod in undecided[:_MOST_NAMED])
            text += f"; no scheduler of ours has decided for {named}: set spec.schedulerName to {names.SCHEDULER_NAME}"
        # A line each of whom it may be about: whoever follows one of them finds it.
        uids = dict.fromkeys((*refusal.pods, *(pod.uid for pod in undecided[:_MOST_NAMED])))
        for uid in uids or [""]:
            logger.error("refused: %s", text, extra=about(pod=self._named(uid), uid=uid))
        known = [pod for uid in refusal.pods if (pod := self._pods.pod(uid)) is not None]
        for pod in known or undecided[:1]:
            self._events.record(
                pod.reference, kind="Warning", reason=REASON_REFUSED, action="Allocating", note=text
            )
        return ClaimRefused(refusal.subject, text, refusal.pods)
