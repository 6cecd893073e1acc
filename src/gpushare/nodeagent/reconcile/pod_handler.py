"""Keeps the claim book true to the API server: this node's pods, as the informer sees them.

Before a refusal they are listed besides, and such a list may be ahead of the informer. What it says counts at once, but only
the informer keeps it true: of whom it has told since the list was asked for the list knows an older state, and it tells
nothing twice. And nobody tells of the end of a pod that the informer never saw: until it has, that pod is asked for again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from typing import Final

import msgspec

from gpushare.api.errors import MalformedAllocation
from gpushare.api.node.device import Device
from gpushare.api.node.shared_event_texts import REASON_MALFORMED_ALLOCATION
from gpushare.api.objects import Pod
from gpushare.kube.event_recorder import EventType, Recorder, Telling
from gpushare.nodeagent.allocate.exclusive_gpus import ExclusiveGpus
from gpushare.nodeagent.allocate.matcher import ClaimBook
from gpushare.nodeagent.allocate.pod_allocations import BoundPod, bound_pod, claim_of
from gpushare.nodeagent.allocate.requested_devices import amount_of
from gpushare.process.log_setup import about

logger = logging.getLogger(__name__)

#: Of a pod, as ``GPUUnhealthy`` and ``GPURecovered`` are of its node.
REASON_POD_GPU_UNHEALTHY: Final = "PodGPUUnhealthy"
REASON_POD_GPU_RECOVERED: Final = "PodGPURecovered"


class PodsOnNode:
    """The handler of the pod informer. ``on_change`` is called after each change that matters."""

    def __init__(
        self, book: ClaimBook, whole: ExclusiveGpus, events: Recorder, on_change: Callable[[], None]
    ) -> None:
        self._book = book
        self._whole = whole
        self._events = events
        self._on_change = on_change
        self._pods: dict[str, BoundPod] = {}
        self._told: dict[str, str] = {}
        self._out: set[tuple[str, str]] = set()
        self._looked = False
        self._ready = False
        self._listing = asyncio.Lock()
        self._told_since: set[str] | None = None
        """Of whom the informer has told since a list was asked for; ``None`` while none is."""
        self._others: set[str] = set()
        """Pods (``namespace/name``) of the list that was read last that ask for nothing of ours."""
        self._ahead: set[str] = set()
        self.ahead = asyncio.Event()
        """Set while a list alone has named some pod."""

    def synced(self) -> None:
        """The first list is complete."""

    def upsert(self, item: BoundPod) -> None:
        """A pod came to this node or changed."""
        self._shown(item.uid)
        if self._namesakes(item) & self._ahead:
            return  # the list has named the pod that came after it
        self._put(item)
        self._on_change()

    def remove(self, key: str, last: BoundPod) -> None:
        """A pod has finished or is gone."""
        self._shown(last.uid)
        self._forget(last.uid)
        self._on_change()

    async def read(self, list_pods: Callable[[], Awaitable[list[Pod]]]) -> None:
        """Take in this node's pods as ``list_pods`` reads them from the API server; raises what that raises."""
        async with self._listing:
            told: set[str] = set()
            self._told_since = told
            try:
                pods = await list_pods()
            finally:
                self._told_since = None
            self._take([pod for pod in pods if pod.metadata.uid not in told])
            self._others = {pod.key for pod in pods if pod.metadata.uid not in self._pods}
            gone = self._ahead - {pod.metadata.uid for pod in pods}
            for uid in gone:
                self._forget(uid)
        if gone:
            self._on_change()

    def _shown(self, uid: str) -> None:
        """The informer tells of it."""
        if self._told_since is not None:
            self._told_since.add(uid)
        self._keep_ahead(self._ahead - {uid})

    def _keep_ahead(self, uids: set[str]) -> None:
        self._ahead = uids
        if uids:
            self.ahead.set()
        else:
            self.ahead.clear()

    def _take(self, pods: Iterable[Pod]) -> None:
        for pod in pods:
            record = bound_pod(pod)
            if record is not None:
                # Such a list leaves out what the kubelet tells of containers.
                known = self._pods.get(record.uid)
                if known is not None:
                    record = msgspec.structs.replace(record, containers=known.containers)
                else:
                    self._keep_ahead(self._ahead | {record.uid})
                self._put(record)
            else:
                self._forget(pod.metadata.uid)

    def rebuild(self) -> None:
        """The node's GPUs are known, or changed: records of other schedulers may read otherwise now."""
        self._ready = True
        for pod in self._pods.values():
            self._enter(pod)

    def tell_of(self, devices: Iterable[Device]) -> None:
        """The node's GPUs are so: pods that hold one which is out of service are told, each once, and when it is back."""
        there = {device.uuid: device for device in devices}
        out = {uuid: device for uuid, device in there.items() if not device.healthy}
        telling: Telling = "come" if self._looked else "standing"
        self._looked = True
        if not out and not self._out:
            return
        held = frozenset(self._held())
        found = {(uid, gpu) for uid, gpu in held if gpu in out}
        for uid, gpu in sorted(found - self._out):
            note = (
                f"GPU {out[gpu].index} ({gpu}), which this pod holds, is out of service: {out[gpu].reason}. "
                "The pod keeps it; if its program has failed, delete the pod"
            )
            self._tell(uid, "Warning", REASON_POD_GPU_UNHEALTHY, note, gpu, telling)
        # One that is not found at all is not back.
        lost = {(uid, gpu) for uid, gpu in self._out & held if gpu not in there}
        for uid, gpu in sorted((self._out & held) - found - lost):
            note = f"GPU {there[gpu].index} ({gpu}), which this pod holds, is in service again"
            self._tell(uid, "Normal", REASON_POD_GPU_RECOVERED, note, gpu, "come")
        self._out = found | lost

    def _held(self) -> Iterator[tuple[str, str]]:
        """UIDs of pods, each with a GPU (UUID) that it holds."""
        for claim in self._book.claims:
            for gpu in self._book.gpus_of(claim):
                yield claim.uid, gpu
        for one in self._whole.pods:
            for gpu in frozenset[str]().union(*one.decided.values()):
                yield one.uid, gpu

    def _tell(self, uid: str, kind: EventType, reason: str, note: str, cause: str, telling: Telling) -> None:
        pod = self._pods[uid]
        logger.log(
            logging.WARNING if kind == "Warning" else logging.INFO,
            "%s: %s",
            reason,
            note,
            extra=about(pod=pod.key, uid=uid),
        )
        self._events.record(
            pod.reference,
            kind=kind,
            reason=reason,
            action="Watching",
            note=note,
            cause=cause,
            telling=telling,
        )

    def pod(self, uid: str) -> BoundPod | None:
        """The pod with that UID."""
        return self._pods.get(uid)

    def uids(self) -> Collection[str]:
        """The UIDs of all pods of this node that ask for GPU memory and have not finished."""
        return self._pods.keys()

    def knows(self, keys: Iterable[str]) -> bool:
        """Whether all these pods (``namespace/name``), to which the kubelet has given nothing yet, have been seen, whatever they ask for.

        One that was given something before is the earlier pod of that name.
        """
        unseen = set(keys) - self._others
        if not unseen:
            return True
        served = {claim.uid for claim in self._book.claims if self._book.answers.has_served(claim)}
        return unseen <= {pod.key for pod in self._pods.values() if pod.uid not in served}

    def undecided(self, resource: str, amount: int) -> list[BoundPod]:
        """Pods with a container that wants as much, but for which no decision is recorded."""
        decided = {claim.uid for claim in self._book.claims}
        return [
            pod
            for pod in self._pods.values()
            if pod.uid not in decided
            and not pod.request.by_gpu
            and any(amount_of(one, resource) == amount for one in pod.request.containers)
        ]

    def _namesakes(self, pod: BoundPod) -> set[str]:
        """The UIDs of other pods of that name: a StatefulSet's come back under the same."""
        return {one.uid for one in self._pods.values() if one.key == pod.key and one.uid != pod.uid}

    def _put(self, pod: BoundPod) -> None:
        for uid in self._namesakes(pod):
            self._forget(uid)
        known = self._pods.get(pod.uid)
        if pod.running and known is not None and not known.running:
            logger.info("pod %s runs", pod.key, extra=about(pod=pod.key, uid=pod.uid))
        self._pods[pod.uid] = pod
        self._enter(pod)

    def _enter(self, pod: BoundPod) -> None:
        if pod.request.by_gpu:
            self._whole.put(pod)
            return
        if not self._ready:
            return
        try:
            claim = claim_of(pod, self._book.node)
        except MalformedAllocation as error:
            claim = None
            # While no GPU is found, a record that names one by its index cannot be judged.
            if self._book.node.devices and self._told.get(pod.uid) != error.problem:
                self._told[pod.uid] = error.problem
                logger.error("%s", error, extra=about(pod=pod.key, uid=pod.uid))
                self._events.record(
                    pod.reference,
                    kind="Warning",
                    reason=REASON_MALFORMED_ALLOCATION,
                    action="Reading",
                    note=f"{error.problem}; its containers get no GPU until the annotations are right",
                    # The scheduler reads it too: one of us tells.
                    cause=error.problem,
                    telling="standing",
                )
        if claim is None:
            self._book.remove(pod.uid)
        else:
            self._told.pop(pod.uid, None)
            self._book.put(claim)

    def _forget(self, uid: str) -> None:
        self._pods.pop(uid, None)
        self._told.pop(uid, None)
        self._keep_ahead(self._ahead - {uid})
        self._book.remove(uid)
        self._whole.remove(uid)
