"""Feeds the allocations of this node's pods from the API server: from the informer, and from lists.

Before a call is refused the pods are listed, and such a list may be ahead of the informer. It takes effect immediately, except for
pods that the informer has shown since the list was requested: of those the list is older, and the informer reports nothing
twice. And nothing reports the end of a pod that the informer never saw: until it has, the pods are listed again.
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
from gpushare.kube.event_recorder import EventType, Occurrence, Recorder
from gpushare.nodeagent.allocate.exclusive_pods import ExclusivePods
from gpushare.nodeagent.allocate.node_allocations import NodeAllocations
from gpushare.nodeagent.allocate.pod_allocations import BoundPod, allocated_pod, amount_of, bound_pod
from gpushare.process.log_setup import about

logger = logging.getLogger(__name__)

#: Events of a pod, as ``GPUUnhealthy`` and ``GPURecovered`` are of its node.
REASON_POD_GPU_UNHEALTHY: Final = "PodGPUUnhealthy"
REASON_POD_GPU_RECOVERED: Final = "PodGPURecovered"


class PodsOnNode:
    """The handler of the pod informer. ``on_change`` is called after each change that matters."""

    def __init__(
        self, book: NodeAllocations, whole: ExclusivePods, events: Recorder, on_change: Callable[[], None]
    ) -> None:
        self._book = book
        self._whole = whole
        self._events = events
        self._on_change = on_change
        self._pods: dict[str, BoundPod] = {}
        self._uids: dict[str, str] = {}
        """The pods' UIDs by ``namespace/name``."""
        self._malformed: dict[str, str] = {}
        self._out: set[tuple[str, str]] = set()
        self._reported = False
        self._ready = False
        self._listing = asyncio.Lock()
        self._shown_since: set[str] | None = None
        """Pods that the informer has shown since a list was requested; ``None`` while none is."""
        self._others: set[str] = set()
        """Pods (``namespace/name``) of the last list that request none of our resources."""
        self._ahead: set[str] = set()
        self.ahead = asyncio.Event()
        """Set while some pod was shown by a list only."""

    def synced(self) -> None:
        """The first list is complete."""

    def upsert(self, item: BoundPod) -> None:
        """A pod came to this node or changed."""
        self._shown(item.uid)
        if self._namesake(item) in self._ahead:
            return  # the list has shown its successor of the same name
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
            shown: set[str] = set()
            self._shown_since = shown
            try:
                pods = await list_pods()
            finally:
                self._shown_since = None
            self._take([pod for pod in pods if pod.metadata.uid not in shown])
            self._others = {pod.key for pod in pods if pod.metadata.uid not in self._pods}
            gone = self._ahead - {pod.metadata.uid for pod in pods}
            for uid in gone:
                self._forget(uid)
        if gone:
            self._on_change()

    def _shown(self, uid: str) -> None:
        """The informer has shown it."""
        if self._shown_since is not None:
            self._shown_since.add(uid)
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
                # Such a list leaves out the states of containers.
                known = self._pods.get(record.uid)
                if known is not None:
                    record = msgspec.structs.replace(record, containers=known.containers)
                else:
                    self._keep_ahead(self._ahead | {record.uid})
                self._put(record)
            else:
                self._forget(pod.metadata.uid)

    def rebuild(self) -> None:
        """The node's GPUs are known, or changed: records by index may mean others now."""
        self._ready = True
        for pod in self._pods.values():
            self._enter(pod)

    def report_gpus(self, devices: Iterable[Device]) -> None:
        """Report unhealthy GPUs as events of the pods that have them, each once, and their recovery."""
        there = {device.uuid: device for device in devices}
        out = {uuid: device for uuid, device in there.items() if not device.healthy}
        occurrence: Occurrence = "began" if self._reported else "lasting"
        self._reported = True
        if not out and not self._out:
            return
        held = frozenset(self._held())
        found = {(uid, gpu) for uid, gpu in held if gpu in out}
        for uid, gpu in sorted(found - self._out):
            note = (
                f"GPU {out[gpu].label} ({gpu}), which is allocated to this pod, is out of service: {out[gpu].reason}. "
                "The pod keeps it; if its program has failed, delete the pod"
            )
            self._record(uid, "Warning", REASON_POD_GPU_UNHEALTHY, note, gpu, occurrence)
        # A GPU that is not found at all has not recovered.
        lost = {(uid, gpu) for uid, gpu in self._out & held if gpu not in there}
        for uid, gpu in sorted((self._out & held) - found - lost):
            note = f"GPU {there[gpu].label} ({gpu}), which is allocated to this pod, is in service again"
            self._record(uid, "Normal", REASON_POD_GPU_RECOVERED, note, gpu, "began")
        self._out = found | lost

    def _held(self) -> Iterator[tuple[str, str]]:
        """UIDs of pods, each with a GPU (UUID) that it has."""
        for allocated in self._book.pods:
            for gpu in self._book.gpus_of(allocated):
                yield allocated.uid, gpu
        for one in self._whole.pods:
            for gpu in frozenset[str]().union(*one.decided.values()):
                yield one.uid, gpu

    def _record(
        self, uid: str, kind: EventType, reason: str, note: str, cause: str, occurrence: Occurrence
    ) -> None:
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
            occurrence=occurrence,
        )

    def pod(self, uid: str) -> BoundPod | None:
        """The pod with that UID."""
        return self._pods.get(uid)

    def uids(self) -> Collection[str]:
        """The UIDs of all pods of this node that request GPU memory and have not finished."""
        return self._pods.keys()

    def knows(self, keys: Iterable[str]) -> bool:
        """Whether all these pods (``namespace/name``), which have no devices yet, have been seen, whatever they request.

        A pod that has had devices is an earlier one of that name.
        """
        return all(key in self._others or self._is_seen(key) for key in keys)

    def _is_seen(self, key: str) -> bool:
        uid = self._uids.get(key)
        allocated = None if uid is None else self._book.pod(uid)
        had_devices = allocated is not None and self._book.grants.has_had_devices(allocated)
        return uid is not None and not had_devices

    def undecided(self, resource: str, amount: int) -> list[BoundPod]:
        """Pods with a container that requests as much and no recorded decision."""
        return [
            pod
            for uid, pod in self._pods.items()
            if self._book.pod(uid) is None
            and not pod.request.by_gpu
            and any(amount_of(one, resource) == amount for one in pod.request.containers)
        ]

    def _namesake(self, pod: BoundPod) -> str | None:
        """The UID of another pod of that name: StatefulSets reuse names."""
        uid = self._uids.get(pod.key)
        return None if uid == pod.uid else uid

    def _put(self, pod: BoundPod) -> None:
        if (namesake := self._namesake(pod)) is not None:
            self._forget(namesake)
        known = self._pods.get(pod.uid)
        if pod.running and known is not None and not known.running:
            logger.info("pod %s is running", pod.key, extra=about(pod=pod.key, uid=pod.uid))
        self._pods[pod.uid] = pod
        self._uids[pod.key] = pod.uid
        self._enter(pod)

    def _enter(self, pod: BoundPod) -> None:
        if pod.request.by_gpu:
            self._whole.put(pod)
            return
        if not self._ready:
            return
        try:
            allocated = allocated_pod(pod, self._book.node)
        except MalformedAllocation as error:
            allocated = None
            # While no GPU is found, a record that names one by its index cannot be checked.
            if self._book.node.devices and self._malformed.get(pod.uid) != error.problem:
                self._malformed[pod.uid] = error.problem
                logger.error("%s", error, extra=about(pod=pod.key, uid=pod.uid))
                self._events.record(
                    pod.reference,
                    kind="Warning",
                    reason=REASON_MALFORMED_ALLOCATION,
                    action="Reading",
                    note=f"{error.problem}; its containers get no GPU until the annotations are right",
                    # The scheduler reads it too: one event is enough.
                    cause=error.problem,
                    occurrence="lasting",
                )
        if allocated is None:
            self._book.remove(pod.uid)
        else:
            self._malformed.pop(pod.uid, None)
            self._book.put(allocated)

    def _forget(self, uid: str) -> None:
        pod = self._pods.pop(uid, None)
        if pod is not None and self._uids.get(pod.key) == uid:
            del self._uids[pod.key]
        self._malformed.pop(uid, None)
        self._keep_ahead(self._ahead - {uid})
        self._book.remove(uid)
        self._whole.remove(uid)
