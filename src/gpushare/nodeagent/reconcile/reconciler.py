"""Brings the records of this node's pods in line with what the kubelet lists.

Runs soon after each answer of ``Allocate``, after each registration, and every now and then. It is the only part
that writes on pods, and all that it writes can be worked out again: it may die at any moment.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from gpushare.api import names
from gpushare.kube.backoff import Backoff
from gpushare.kube.client.client import Annotator
from gpushare.kube.client.errors import ApiError, KubeError
from gpushare.kube.clock import Clock
from gpushare.kube.event_recorder import Recorder
from gpushare.nodeagent.allocate.exclusive_gpus import ExclusiveGpus
from gpushare.nodeagent.allocate.grant_log import DeviceListing
from gpushare.nodeagent.allocate.matcher import ClaimBook
from gpushare.nodeagent.allocate.pod_allocations import BoundPod, Claim, claim_of
from gpushare.nodeagent.errors import PodResourcesUnavailable
from gpushare.nodeagent.modes.rules import NodeModeRules, rules_of
from gpushare.nodeagent.observability.metrics import Metrics
from gpushare.nodeagent.reconcile.allocation_patch import (
    Correction,
    DevicesByContainer,
    announcement,
    correction,
    relocation,
)
from gpushare.nodeagent.reconcile.pod_resources import Listing
from gpushare.process.log_setup import about

if TYPE_CHECKING:
    from gpushare.api.node.device import NodeDevices

logger = logging.getLogger(__name__)

REASON_CORRECTED: Final = "GPUAllocationReconciled"

#: Seconds: how soon after an answer the kubelet is asked (it notes the answer first), how often without
#: occasion, after how long without news there is time to tidy up, how long its list may take, and how long a write is trusted to show up in the watch.
SOON_S: Final = 0.05
EVERY_S: Final = 30.0
IDLE_S: Final = 1.0
LIST_S: Final = 5.0
TRUST_S: Final = 10.0

_MOST_MOVES: Final = 64


class _Pod(Protocol):
    """Whose record is written."""

    @property
    def uid(self) -> str:
        """Its UID."""

    @property
    def pod(self) -> BoundPod:
        """As the watch shows it."""


class Reconciler:
    """``on_blocked`` is called when ``blocked`` would say otherwise than when it was asked last.

    ``on_idle`` is called when nothing is left to do, and nothing has happened for a while.
    """

    def __init__(
        self,
        book: ClaimBook,
        whole: ExclusiveGpus,
        listing: Listing,
        client: Annotator,
        *,
        events: Recorder,
        metrics: Metrics,
        clock: Clock,
        on_blocked: Callable[[], None],
        on_idle: Callable[[], None] = lambda: None,
    ) -> None:
        self._book = book
        self._whole_gpus = whole
        self._listing = listing
        self._client = client
        self._events = events
        self._metrics = metrics
        self._clock = clock
        self._on_blocked = on_blocked
        self._on_idle = on_idle
        self._woken = asyncio.Event()
        self._blocked: Mapping[str, str] = {}
        self._whole: Mapping[str, str] = {}
        self._listed: DeviceListing = {}
        self._written: dict[str, tuple[Correction, float]] = {}
        self._in_line: dict[str, tuple[Claim, DevicesByContainer, NodeDevices]] = {}
        """What was looked at and found right."""
        self._resting = False
        self._silent = False

    def trigger(self) -> None:
        """Something changed: look soon."""
        self._woken.set()

    def rest(self, *, resting: bool) -> None:
        """Whether another agent writes instead; what the kubelet lists is followed all the same."""
        if resting != self._resting:
            self._resting = resting
            self._woken.set()

    def kubelet_restarted(self, resource: str, at_s: float) -> None:
        """At that moment we began to register ``resource`` with a kubelet that may know less than the one before."""
        self._book.answers.registered(resource, at_s)
        self._woken.set()

    async def run(self) -> None:
        """Reconcile until cancelled."""
        again = Backoff(SOON_S * 2, EVERY_S)
        while True:
            settled = await self.once()
            if not settled:
                woken = await self._woken_within(again.next_s())
            elif not (woken := await self._woken_within(IDLE_S)):
                self._on_idle()
                woken = await self._woken_within(EVERY_S)
            if woken:
                again.reset()
                await self._clock.sleep(SOON_S)

    async def _woken_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self._woken.wait()
        except TimeoutError:
            return False

    async def once(self) -> bool:
        """Look once and write what must be written; whether nothing is left to do for now."""
        self._woken.clear()
        heard = await self._look()
        if self._resting:
            return heard
        # Without the kubelet's list our own answers are the best that is known.
        written = await self._announce() and await self._relocate() and await self._announce()
        for claim in list(self._book.claims):
            if (change := self._correction(claim)) is None:
                await asyncio.sleep(0)  # an Allocate may wait
            elif heard and self._leaves(claim, change) and (not self._is_told() or self._book.displaced()):
                # Pods that ask alike change their places among each other. Their records name all these places together:
                # none is left before it is known who of them is there, or that nobody comes.
                written = False
            else:
                written = await self._write(claim, change) and written
        node, ids = self._book.node, self._book.ids
        for one, change in self._whole_gpus.corrections(self._listed, node, ids) if heard else ():
            written = await self._write(one, change) and written
        known = {claim.uid for claim in self._book.claims} | {one.uid for one in self._whole_gpus.pods}
        for gone in [uid for uid in (*self._written, *self._in_line) if uid not in known]:
            self._written.pop(gone, None)
            self._in_line.pop(gone, None)
        rules = rules_of(self._book.node.mode)
        if rules.kept_back(self._book.claims, self._whole) != self._blocked:
            self._on_blocked()
        return written and heard and not self._book.answers.unconfirmed(self._clock.monotonic())

    def _correction(self, claim: Claim) -> Correction | None:
        """What is to be written on a pod; ``None`` where it was looked at already and found right, too."""
        given, node = self._book.given(claim), self._book.node
        if self._in_line.get(claim.uid) == (claim, given, node):
            return None
        change = correction(claim, given, node, self._book.ids)
        if change is None:
            self._in_line[claim.uid] = (claim, given, node)
        return change

    def _unannounced(self) -> Iterator[tuple[Claim, Correction]]:
        """Pods whose containers are elsewhere than their record says, as the watch has not shown it yet."""
        for claim in list(self._book.claims):
            change = self._correction(claim)
            if change is None or self._is_written(claim, change):
                continue
            if (first := announcement(claim, change)) is not None:
                yield claim, first

    def _leaves(self, claim: Claim, change: Correction) -> bool:
        """Whether, with ``change``, the pod is no longer counted on a GPU where it was."""
        wrote, _ = self._written.get(claim.uid, (None, 0.0))
        announced = wrote is not None and wrote.annotations.get(names.ANN_ALSO) is not None
        return bool(change.note) or announced or names.ANN_ALSO in claim.pod.annotations

    async def _announce(self) -> bool:
        """Before any record moves, let the scheduler count where containers are that its record has elsewhere."""
        written = True
        for claim, first in self._unannounced():
            written = await self._write(claim, first) and written
        return written

    def _is_told(self) -> bool:
        """Whether it is known where everybody is who was answered, and told where that is not as recorded.

        Told means that the watch shows it: then it has also shown whom the scheduler had bound before it was told.
        """
        now_s = self._clock.monotonic()
        return (
            not self._book.answers.unconfirmed(now_s)
            and all(
                self._is_shown(uid, change)
                for uid, (change, at_s) in self._written.items()
                if now_s - at_s < TRUST_S
            )
            and next(self._unannounced(), None) is None
            # Where one is that the kubelet is in the middle of is known, and not written before it has everything.
            and not any(not claim.pod.running and self._book.is_begun(claim) for claim in self._book.claims)
        )

    def _is_shown(self, uid: str, change: Correction) -> bool:
        """Whether the watch shows it, or it decided nothing anew: where containers are, the kubelet says."""
        claim = self._book.claim(uid)
        recorded = {} if claim is None else claim.pod.annotations
        return (
            claim is None
            or not change.decides
            or all(recorded.get(name) == value for name, value in change.annotations.items())
        )

    async def _relocate(self) -> bool:
        """Decide anew for waiting pods whose GPU is gone; whether no more is to be written.

        Before the records of those that have it are corrected: so their old place is never seen free. And after all who
        have come there are counted there, so that nor is the place that the waiting one leaves.
        """
        for _ in range(_MOST_MOVES):
            found = self._book.displaced()
            if found is None:
                return True
            # What was started meanwhile says where it is, by now.
            if not (await self._look() and await self._announce() and self._is_told()):
                return False
            if self._book.displaced() != found:
                continue
            claim = found.claim
            change = relocation(claim, found.devices, self._book.node, self._book.claim(found.stranger))
            if not await self._write(claim, change):
                return False
            moved = claim_of(claim.pod.annotated(change.annotations), self._book.node)
            if moved is not None and self._book.displaced() == found:
                self._book.put(moved)
            self._book.exchanged(found)
        return False

    async def _look(self) -> bool:
        asked_at_s = self._clock.monotonic()
        try:
            listing = await self._listing.read(LIST_S)
        except PodResourcesUnavailable as error:
            if not self._silent:
                logger.warning("%s; until it answers, records follow what we answered ourselves", error)
            self._silent = True
            return False
        self._silent = False
        for slot in self._book.answers.observe(listing, asked_at_s):
            claim = self._book.claim(slot.uid)
            logger.warning(
                "the kubelet does not list what it was given for container %s (pod UID %s); it may ask again",
                slot.container,
                slot.uid,
                extra=about(pod="" if claim is None else claim.pod.key, uid=slot.uid),
            )
        self._whole = self._held_whole(listing)
        self._listed = listing
        return True

    def _is_written(self, claim: "_Pod", change: Correction) -> bool:
        """Whether it is what was written last, and the watch may only not have shown it yet."""
        wrote, at_s = self._written.get(claim.uid, (None, 0.0))
        return wrote == change and self._clock.monotonic() - at_s < TRUST_S

    async def _write(self, claim: "_Pod", change: Correction) -> bool:
        if self._is_written(claim, change):
            return True
        wrote, _ = self._written.get(claim.uid, (None, 0.0))
        pod = claim.pod
        try:
            await self._client.annotate_pod(pod.namespace, pod.name, change.annotations, uid=pod.uid)
        except ApiError as error:
            if error.not_found or error.conflict:
                return True  # gone, or another pod has its name: the watch will tell
            logger.warning(
                "pod %s: its record cannot be brought up to date: %s",
                pod.key,
                error,
                extra=about(pod=pod.key, uid=pod.uid),
            )
            return False
        except KubeError as error:
            logger.warning(
                "pod %s: its record waits: %s", pod.key, error, extra=about(pod=pod.key, uid=pod.uid)
            )
            return False
        self._written[claim.uid] = (change, self._clock.monotonic())
        if change.note and (wrote is None or wrote.note != change.note):
            logger.info("pod %s: %s", pod.key, change.note, extra=about(pod=pod.key, uid=pod.uid))
            self._metrics.reconciled.add()
            self._events.record(
                pod.reference, kind="Normal", reason=REASON_CORRECTED, action="Reconciling", note=change.note
            )
        return True

    def _held_whole(self, listing: DeviceListing) -> dict[str, str]:
        """GPUs that containers hold as a whole, and by whom."""
        held: dict[str, str] = {}
        for key, given in listing.items():
            for (_, resource), ids in given.items():
                if resource == names.GPU_WHOLE:
                    held |= dict.fromkeys(
                        self._book.ids.by_gpu(ids), f"held whole by pod {key} until it ends"
                    )
        return held

    def blocked(self, rules: NodeModeRules) -> Mapping[str, str]:
        """GPUs that must not be given in a mode with ``rules``, for what containers hold from another: UUID → why."""
        self._blocked = rules.kept_back(self._book.claims, self._whole)
        return self._blocked
