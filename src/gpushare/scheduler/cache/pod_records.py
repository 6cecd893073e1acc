"""Pods as the scheduler keeps them: what a waiting one asks for, what a bound one holds."""

from collections.abc import Callable
from typing import Final

import msgspec

from gpushare.api import names
from gpushare.api.allocation.allocation import Allocation
from gpushare.api.allocation.annotations import is_allocated, read_allocation
from gpushare.api.errors import InvalidRequest, MalformedAllocation
from gpushare.api.objects import ObjectReference, Pod, decode_pod
from gpushare.api.request.amounts import NOTHING, Amounts, amounts_of
from gpushare.api.request.pod_group import Gang, gang_of
from gpushare.api.request.request import Request, cpu_milli_of, request_of, requests_share, wants_whole_device
from gpushare.reasons.unscheduled import Unplaced, unplaced_of

_OLD_GENERATIONS: Final[tuple[str, ...]] = (
    names.ANN_MEM_INDEX,
    names.ANN_MEM_POD,
    names.ANN_MEM_DEVICE,
    names.ANN_ALLOCATION,
    names.ANN_CORE,
)
_PLACED: Final = Unplaced()


class PodRecord(msgspec.Struct, frozen=True, gc=False):
    """One pod that asks for, or holds, a part of a GPU, or belongs to a gang of such pods.

    ``node`` is empty while it waits. ``foreign`` holds the annotations of another scheduler, which can
    be read only beside the node's devices. ``problem`` says why the pod cannot be placed or counted. A bound
    pod with none of these asks for a GPU, and nobody has recorded that it was given one. A ``bystander`` has nothing to
    do with GPUs, but counts among its gang, in an elastic quota, or for the processors that it takes: ``cpu_milli`` are
    thousandths, of bound pods, where they are counted.
    """

    uid: str
    pod: str
    node: str
    finished: bool
    request: Request | None = None
    allocation: Allocation | None = None
    foreign: dict[str, str] | None = None
    problem: str = ""
    gang: Gang | None = None
    bystander: bool = False
    priority: int = 0
    preempts: bool = True
    """Whether it may have others ended to get room (``preemptionPolicy`` is not ``Never``)."""
    leaving: bool = False
    """Whether its end was asked for."""
    succeeded: bool = False
    """Whether it has finished, and well, and of itself."""
    created: str = ""
    """RFC 3339."""
    cpu_milli: int = 0
    whole_device: bool = False
    """Of a bound pod: whether its label asks for whole GPUs."""
    amounts: Amounts = NOTHING
    """All that it requests, as quotas count it."""
    owner: str = ""
    """UID of the controller that would make it anew elsewhere; empty where it may not be moved, or nothing is ever moved."""
    room_made: str = ""
    """When others were moved for it; empty where they were not, or nothing is ever moved."""
    unplaced: Unplaced = _PLACED
    """Where it has no node: what it says itself of that."""
    ours: bool = False
    """Of a bystander: whether it names this scheduler, which is asked about it then."""
    wish: bytes = b""
    """Which nodes it wants (``kubescheduler.required_nodes``), where that is followed; empty: all of them."""

    def reference(self) -> ObjectReference:
        """This pod, for an event about it."""
        namespace, _, name = self.pod.partition("/")
        return ObjectReference("Pod", name, namespace, self.uid)


def record_of(pod: Pod) -> PodRecord | None:
    """The record of ``pod``, or ``None`` when it has nothing to do with GPUs of ours, nor with a gang."""
    record = _of_gang(pod)
    return None if record is None else _in_full(record, pod)


def bystander_of(pod: Pod) -> PodRecord | None:
    """The record of a pod that requests no GPU, for those who count every pod.

    ``None`` for one that has ended, or has no node and is for another scheduler to place.
    """
    if pod.finished or not (pod.spec.node_name or pod.spec.scheduler_name == names.SCHEDULER_NAME):
        return None
    record = PodRecord(pod.metadata.uid, pod.key, pod.spec.node_name, finished=False, bystander=True)
    return _in_full(record, pod)


def _in_full(record: PodRecord, pod: Pod) -> PodRecord:
    return msgspec.structs.replace(
        record,
        priority=pod.spec.priority or 0,
        preempts=pod.spec.preemption_policy != "Never",
        leaving=pod.metadata.deletion_timestamp is not None,
        # Whoever was told to end may end with 0 as well, and others come in its place.
        succeeded=pod.status.phase == "Succeeded" and pod.metadata.deletion_timestamp is None,
        created=pod.metadata.creation_timestamp or "",
        amounts=amounts_of(pod),
        unplaced=_PLACED if pod.spec.node_name else unplaced_of(pod),
        ours=record.bystander and pod.spec.scheduler_name == names.SCHEDULER_NAME,
        whole_device=bool(pod.spec.node_name) and wants_whole_device(pod),
    )


def _of_gang(pod: Pod) -> PodRecord | None:
    record = _without_gang(pod)
    if pod.spec.scheduling_gates:
        return record  # nobody asks about it: its gang does not count on it yet
    try:
        gang = gang_of(pod)
    except InvalidRequest as error:
        # What a bound pod holds counts, whatever its labels say.
        if record is None or record.node or record.problem:
            return record
        return msgspec.structs.replace(record, request=None, problem=error.problem)
    if gang is None:
        return record
    if record is None:
        meta = pod.metadata
        return PodRecord(meta.uid, pod.key, pod.spec.node_name, pod.finished, gang=gang, bystander=True)
    return msgspec.structs.replace(record, gang=gang)


def _without_gang(pod: Pod) -> PodRecord | None:
    meta = pod.metadata
    node = pod.spec.node_name
    if not node:
        if pod.spec.scheduler_name == names.PLACEHOLDER_SCHEDULER:
            return None  # it asks for what the pod that it stands for asks for already
        try:
            request = request_of(pod)
        except InvalidRequest as error:
            return PodRecord(meta.uid, pod.key, "", pod.finished, problem=error.problem)
        return None if request is None else PodRecord(meta.uid, pod.key, "", pod.finished, request)
    if not requests_share(pod):
        return None  # whatever its annotations say: no kubelet gives it a share
    annotations = meta.annotations or {}
    if not is_allocated(annotations):
        # Followed all the same: it may have lost its annotations, and keeps what it was given.
        return PodRecord(meta.uid, pod.key, node, pod.finished)
    if names.ANN_SHARE not in annotations:
        foreign = {name: annotations[name] for name in _OLD_GENERATIONS if name in annotations}
        return PodRecord(meta.uid, pod.key, node, pod.finished, foreign=foreign)
    try:
        allocation = read_allocation(annotations, None)
        if allocation is not None and names.ANN_ALSO in annotations:
            also = read_allocation({names.ANN_SHARE: annotations[names.ANN_ALSO]}, None)
            allocation = _both(allocation, also)
    except MalformedAllocation as error:
        return PodRecord(meta.uid, pod.key, node, pod.finished, problem=error.problem)
    return PodRecord(meta.uid, pod.key, node, pod.finished, allocation=allocation)


def decoder_of(read: Callable[[Pod], PodRecord | None]) -> Callable[[bytes], tuple[str, PodRecord] | None]:
    """A decoder of pods' JSON as an informer takes it: what ``read`` makes of a pod, ``None`` where that is nothing."""

    def decode(raw: bytes) -> tuple[str, PodRecord] | None:
        record = read(decode_pod(raw))
        return None if record is None else (record.pod, record)

    return decode


decode_record: Final = decoder_of(record_of)


def counted_record_of(pod: Pod) -> PodRecord | None:
    """As ``record_of``, and of every bound pod that asks for processors how many."""
    record = record_of(pod)
    cpu_milli = cpu_milli_of(pod) if pod.spec.node_name else 0
    if not cpu_milli:
        return record
    if record is None:
        if pod.finished:
            return PodRecord(pod.metadata.uid, pod.key, pod.spec.node_name, finished=True)
        record = _in_full(
            PodRecord(pod.metadata.uid, pod.key, pod.spec.node_name, finished=False, bystander=True), pod
        )
    return msgspec.structs.replace(record, cpu_milli=cpu_milli)


def _both(recorded: Allocation, also: Allocation | None) -> Allocation:
    """What a pod holds whose record and containers name different GPUs: both are kept from others."""
    known = {share.uuid for share in recorded.gpus}
    more = () if also is None else tuple(share for share in also.gpus if share.uuid not in known)
    return msgspec.structs.replace(recorded, gpus=(*recorded.gpus, *more))
