"""Corrects the records of this node's pods to what the kubelet lists.

Runs soon after each ``Allocate``, after each registration, and periodically. Nothing else writes on pods, and all that it writes
can be computed again: it may die at any moment.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Protocol

from gpushare.api import names
from gpushare.kube.backoff import Backoff
from gpushare.kube.client.client import Annotator
from gpushare.kube.client.errors import ApiError, KubeError
from gpushare.kube.clock import Clock
from gpushare.kube.event_recorder import Recorder
from gpushare.nodeagent.allocate.exclusive_pods import ExclusivePods
from gpushare.nodeagent.allocate.grant_log import DeviceListing
from gpushare.nodeagent.allocate.node_allocations import Holding, NodeAllocations
from gpushare.nodeagent.allocate.pod_allocations import AllocatedPod, BoundPod, allocated_pod
from gpushare.nodeagent.errors import PodResourcesUnavailable
from gpushare.nodeagent.modes.rules import NodeModeRules, rules_of
from gpushare.nodeagent.observability.metrics import Metrics
from gpushare.nodeagent.reconcile.allocation_patch import (
    RecordPatch,
    announcement,
    record_patch,
    relocation_patch,
)
from gpushare.nodeagent.reconcile.pod_resources import Listing
from gpushare.process.log_setup import about

logger = logging.getLogger(__name__)

REASON_CORRECTED: Final = "GPUAllocationReconciled"

#: In seconds: delay after an ``Allocate`` (the kubelet records it first), interval without any cause, idle time before ``on_idle``,
#: timeout of the kubelet's list, and how long a write is trusted to show up in the watch.
SOON_S: Final = 0.05
EVERY_S: Final = 30.0
IDLE_S: Final = 1.0
LIST_S: Final = 5.0
TRUST_S: Final = 10.0

_MOST_MOVES: Final = 64


class _Pod(Protocol):
    """A pod whose record is written."""

    @property
    def uid(self) -> str:
        """Its UID."""

    @property
    def bound(self) -> BoundPod:
        """As the watch shows it."""


class Reconciler:
    """``on_blocked`` is called when ``blocked`` returns something else than ``take_blocked`` did.

    ``on_idle`` is called when nothing is left to do and nothing has happened for a while.
    """

    def __init__(
        self,
        book: NodeAllocations,
        exclusive: ExclusivePods,
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
        self._exclusive = exclusive
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
        self._written: dict[str, tuple[RecordPatch, float]] = {}
        self._agreeing: dict[str, Holding] = {}
        """What records were compared with that agree, by the pod's UID."""
        self._resting = False
        self._unlisted = False

    def trigger(self) -> None:
        """Something changed: reconcile soon."""
        self._woken.set()

    def rest(self, *, resting: bool) -> None:
        """Whether another agent writes instead; the kubelet's list is followed nevertheless."""
        if resting != self._resting:
            self._resting = resting
            self._woken.set()

    def kubelet_restarted(self, resource: str, at_s: float) -> None:
        """Registration of ``resource`` began at that moment, with a kubelet that may know less than the one before."""
        self._book.grants.kubelet_registered(resource, at_s)
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
        """Read the kubelet's list and write what is needed; whether nothing is left to do for now."""
        self._woken.clear()
        listed = await self._read_listing()
        if self._resting:
            return listed
        # Without the kubelet's list our own grants are the best that is known.
        written = await self._announce() and await self._relocate() and await self._announce()
        for pod, change in self._differing():
            if (
                listed
                and self._frees(pod, change)
                and (not self._is_settled() or self._book.find_relocation())
            ):
                # Identical pods swap GPUs. Together their records name all of these: none may be dropped before it is known which
                # of the pods has it, or that none comes.
                written = False
            else:
                written = await self._write(pod, change) and written
        node, ids = self._book.node, self._book.ids
        for one, change in self._exclusive.record_patches(self._listed, node, ids) if listed else ():
            written = await self._write(one, change) and written
        known = self._book.holdings().keys() | {one.uid for one in self._exclusive.pods}
        for gone in [uid for uid in (*self._written, *self._agreeing) if uid not in known]:
            self._written.pop(gone, None)
            self._agreeing.pop(gone, None)
        if self.blocked(rules_of(self._book.node.mode)) != self._blocked:
            self._on_blocked()
        return written and listed and not self._book.grants.unconfirmed(self._clock.monotonic())

    def _differing(self) -> Iterator[tuple[AllocatedPod, RecordPatch]]:
        """Pods whose records do not agree with where their containers are, and what to write."""
        for uid in list(self._book.holdings()):
            holding = self._book.holdings().get(uid)
            if holding is None or self._agreeing.get(uid) is holding:
                continue
            change = record_patch(holding.pod, holding.ids, self._book.node, self._book.ids)
            if change is None:
                self._agreeing[uid] = holding
            else:
                yield holding.pod, change

    def _unannounced(self) -> Iterator[tuple[AllocatedPod, RecordPatch]]:
        """Pods whose containers are on other GPUs than their record, before that is announced."""
        for pod, change in self._differing():
            if not self._is_written(pod, change) and (first := announcement(pod, change)) is not None:
                yield pod, first

    def _frees(self, pod: AllocatedPod, change: RecordPatch) -> bool:
        """Whether, with ``change``, the pod no longer counts on a GPU where it did."""
        wrote, _ = self._written.get(pod.uid, (None, 0.0))
        announced = wrote is not None and wrote.annotations.get(names.ANN_ALSO) is not None
        return bool(change.note) or announced or names.ANN_ALSO in pod.bound.annotations

    async def _announce(self) -> bool:
        """Before any record moves, let the scheduler count containers where they are, too."""
        written = True
        for pod, first in self._unannounced():
            written = await self._write(pod, first) and written
        return written

    def _is_settled(self) -> bool:
        """Whether all grants are confirmed, and everything that differs from the records is announced.

        That means that the watch shows it: then it has also shown what the scheduler had bound before it knew.
        """
        now_s = self._clock.monotonic()
        return (
            not self._book.grants.unconfirmed(now_s)
            and all(
                self._is_shown(uid, change)
                for uid, (change, at_s) in self._written.items()
                if now_s - at_s < TRUST_S
            )
            and next(self._unannounced(), None) is None
            # Nothing is written of a pod before it has all its devices.
            and not any(not pod.bound.running and self._book.is_begun(pod) for pod in self._book.pods)
        )

    def _is_shown(self, uid: str, change: RecordPatch) -> bool:
        """Whether the watch shows it, or it decides nothing, because the kubelet's list determines where containers are."""
        pod = self._book.pod(uid)
        recorded = {} if pod is None else pod.bound.annotations
        return (
            pod is None
            or not change.decides
            or all(recorded.get(name) == value for name, value in change.annotations.items())
        )

    async def _relocate(self) -> bool:
        """Relocate waiting pods whose GPUs are taken; whether nothing more is to be written.

        Before the records of the pods that took them are corrected, so that their old GPUs never look free. And after
        those pods count on the new ones, so that neither do the GPUs that the waiting pod leaves.
        """
        for _ in range(_MOST_MOVES):
            found = self._book.find_relocation()
            if found is None:
                return True
            # Pods that were started meanwhile are known by now.
            if not (await self._read_listing() and await self._announce() and self._is_settled()):
                return False
            if self._book.find_relocation() != found:
                continue
            pod = found.pod
            change = relocation_patch(pod, found.devices, self._book.node, self._book.pod(found.partner))
            if not await self._write(pod, change):
                return False
            moved = allocated_pod(pod.bound.annotated(change.annotations), self._book.node)
            if moved is not None and self._book.find_relocation() == found:
                self._book.put(moved)
            self._book.relocated(found)
        return False

    async def _read_listing(self) -> bool:
        requested_at_s = self._clock.monotonic()
        try:
            listing = await self._listing.read(LIST_S)
        except PodResourcesUnavailable as error:
            if not self._unlisted:
                logger.warning(
                    "%s; until it responds, records are based on the agent's own allocations", error
                )
            self._unlisted = True
            return False
        self._unlisted = False
        for slot in self._book.grants.observe(listing, requested_at_s):
            pod = self._book.pod(slot.uid)
            logger.warning(
                "the kubelet does not list what was granted to container %s (pod UID %s); it may call Allocate again",
                slot.container,
                slot.uid,
                extra=about(pod="" if pod is None else pod.key, uid=slot.uid),
            )
        self._whole = self._held_whole(listing)
        self._listed = listing
        return True

    def _is_written(self, pod: "_Pod", change: RecordPatch) -> bool:
        """Whether it was written last, and the watch may not have shown it yet."""
        wrote, at_s = self._written.get(pod.uid, (None, 0.0))
        return wrote == change and self._clock.monotonic() - at_s < TRUST_S

    async def _write(self, pod: "_Pod", change: RecordPatch) -> bool:
        if self._is_written(pod, change):
            return True
        wrote, _ = self._written.get(pod.uid, (None, 0.0))
        bound = pod.bound
        try:
            await self._client.annotate_pod(bound.namespace, bound.name, change.annotations, uid=bound.uid)
        except ApiError as error:
            if error.not_found or error.conflict:
                return True  # gone, or another pod has its name: the watch will show it
            logger.warning(
                "pod %s: its record cannot be updated: %s",
                bound.key,
                error,
                extra=about(pod=bound.key, uid=bound.uid),
            )
            return False
        except KubeError as error:
            logger.warning(
                "pod %s: its record cannot be updated yet: %s",
                bound.key,
                error,
                extra=about(pod=bound.key, uid=bound.uid),
            )
            return False
        self._written[pod.uid] = (change, self._clock.monotonic())
        if change.note and (wrote is None or wrote.note != change.note):
            logger.info("pod %s: %s", bound.key, change.note, extra=about(pod=bound.key, uid=bound.uid))
            self._metrics.reconciled.add()
            self._events.record(
                bound.reference,
                kind="Normal",
                reason=REASON_CORRECTED,
                action="Reconciling",
                note=change.note,
            )
        return True

    def _held_whole(self, listing: DeviceListing) -> dict[str, str]:
        """GPUs that containers have exclusively, and which pod."""
        held: dict[str, str] = {}
        for key, devices in listing.items():
            for (_, resource), ids in devices.items():
                if resource == names.GPU_WHOLE:
                    held |= dict.fromkeys(
                        self._book.ids.by_gpu(ids), f"held whole by pod {key} until it ends"
                    )
        return held

    def take_blocked(self, rules: NodeModeRules) -> None:
        """What ``blocked`` returns now is published."""
        self._blocked = self.blocked(rules)

    def blocked(self, rules: NodeModeRules) -> Mapping[str, str]:
        """GPUs that must not be allocated in a mode with ``rules``, because of allocations of another mode or device plugin: UUID → why."""
        return {**self._listing.held_by_others, **rules.kept_back(self._book.pods, self._whole)}
