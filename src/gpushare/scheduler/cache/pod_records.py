"""The scheduler's records of pods: the request of a pending pod, the allocation of a bound one."""

from collections.abc import Callable
from typing import Final

import msgspec

from gpushare.api import names
from gpushare.api.allocation.allocation import Allocation
from gpushare.api.allocation.annotations import is_allocated, read_allocation
from gpushare.api.errors import InvalidRequest, MalformedAllocation
from gpushare.api.objects import ObjectReference, Pod, decode_pod
from gpushare.api.request.amounts import NOTHING, Amounts, amounts_of
from gpushare.api.request.gpu_selection import GpuSelection, bound_selection
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
    """A pod that requests or holds a part of a GPU, or belongs to a gang of such pods.

    ``node``: empty while the pod is pending. ``foreign``: the annotations of another scheduler, which can be read only with the node's
    devices. ``problem``: why the pod cannot be placed or counted. A bound pod without ``allocation``, ``foreign`` and ``problem`` requests a
    GPU, but no allocation is recorded. ``bystander``: the pod has nothing to do with GPUs, but counts for its gang, for an elastic quota, or
    for its CPU request. ``cpu_milli``: the CPU request of a bound pod in thousandths, if CPU is counted.
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
    pod_group: str = ""
    """``namespace/name`` of its PodGroup; empty if it is in none."""
    bystander: bool = False
    priority: int = 0
    preempts: bool = True
    """Whether it may preempt other pods (``preemptionPolicy`` is not ``Never``)."""
    leaving: bool = False
    """Whether it is being deleted."""
    gone_at: str = ""
    """Of a pod that is being deleted: when its grace period ends, RFC 3339. Empty if only this scheduler knows of the deletion yet."""
    preempted: bool = False
    """Of a pod that is being deleted: whether kube-scheduler evicted it. Tenants cannot write that."""
    succeeded: bool = False
    """Whether it has finished successfully without being deleted."""
    created: str = ""
    """RFC 3339."""
    cpu_milli: int = 0
    whole_device: bool = False
    """Of a bound pod: whether its label requests whole GPUs."""
    selection: GpuSelection | None = None
    """Of a bound pod: the GPUs that it may have, if its annotations select some. A pending pod's is in ``request``."""
    amounts: Amounts = NOTHING
    """All requested resources, as quotas count them."""
    owner: str = ""
    """UID of the controller that would recreate it on another node; empty if it may not be moved, or without defragmentation."""
    room_made: str = ""
    """When other pods were moved for it; empty if none were, or without defragmentation."""
    unplaced: Unplaced = _PLACED
    """Of a pod without a node: what its status says about that."""
    ours: bool = False
    """Of a bystander: whether its ``schedulerName`` is ours, so that kube-scheduler sends it to us."""
    wish: bytes = b""
    """Its node requirements (``kubescheduler.required_nodes``), if these are tracked; empty: any node."""

    def reference(self) -> ObjectReference:
        """A reference to this pod, for events."""
        namespace, _, name = self.pod.partition("/")
        return ObjectReference("Pod", name, namespace, self.uid)


def record_of(pod: Pod) -> PodRecord | None:
    """The record of ``pod``; ``None`` if it has nothing to do with shared GPUs or with a gang."""
    record = _of_gang(pod)
    return None if record is None else _with_common_fields(record, pod)


def bystander_of(pod: Pod) -> PodRecord | None:
    """The record of a pod that requests no GPU, for plugins that count every pod.

    ``None`` for a pod that has ended, or that has no node and belongs to another scheduler.
    """
    if pod.finished or not (pod.spec.node_name or pod.spec.scheduler_name == names.SCHEDULER_NAME):
        return None
    record = PodRecord(pod.metadata.uid, pod.key, pod.spec.node_name, finished=False, bystander=True)
    return _with_common_fields(record, pod)


def _with_common_fields(record: PodRecord, pod: Pod) -> PodRecord:
    return msgspec.structs.replace(
        record,
        priority=pod.spec.priority or 0,
        # Of a PodGroup, each pod would be judged alone: others might be evicted for a group that cannot run.
        preempts=pod.spec.preemption_policy != "Never" and not pod.pod_group,
        pod_group=pod.pod_group,
        leaving=pod.metadata.deletion_timestamp is not None,
        gone_at=pod.metadata.deletion_timestamp or "",
        preempted=pod.metadata.deletion_timestamp is not None and _is_preempted(pod),
        # A pod that is being deleted may exit with status 0 too, but then its controller replaces it.
        succeeded=pod.status.phase == "Succeeded" and pod.metadata.deletion_timestamp is None,
        created=pod.metadata.creation_timestamp or "",
        amounts=amounts_of(pod),
        unplaced=_PLACED if pod.spec.node_name else unplaced_of(pod),
        ours=record.bystander and pod.spec.scheduler_name == names.SCHEDULER_NAME,
        whole_device=bool(pod.spec.node_name) and wants_whole_device(pod),
        selection=bound_selection(pod.metadata.annotations) if pod.spec.node_name else None,
    )


def _is_preempted(pod: Pod) -> bool:
    return any(
        condition.type == "DisruptionTarget"
        and condition.status == "True"
        and condition.reason == "PreemptionByScheduler"
        for condition in pod.status.conditions or ()
    )


def _of_gang(pod: Pod) -> PodRecord | None:
    record = _without_gang(pod)
    if pod.spec.scheduling_gates:
        return record  # kube-scheduler does not consider it yet, so it does not count for its gang
    try:
        gang = gang_of(pod)
    except InvalidRequest as error:
        # What a bound pod holds counts, whatever its labels say.
        if record is None or record.node or record.problem:
            return record
        return msgspec.structs.replace(record, request=None, problem=error.problem)
    if gang is None and not (pod.pod_group and pod.spec.scheduler_name == names.SCHEDULER_NAME):
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
            return None  # the pod that it stands for already has the same request
        try:
            request = request_of(pod)
        except InvalidRequest as error:
            return PodRecord(meta.uid, pod.key, "", pod.finished, problem=error.problem)
        return None if request is None else PodRecord(meta.uid, pod.key, "", pod.finished, request)
    if not requests_share(pod):
        return None  # no kubelet allocates a share to it, whatever its annotations say
    annotations = meta.annotations or {}
    if not is_allocated(annotations):
        # Tracked anyway: it may have lost its annotations, and then still holds its allocation.
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
    """An informer's decoder of pods' JSON: the key and the record that ``read`` returns; ``None`` for pods without a record."""

    def decode(raw: bytes) -> tuple[str, PodRecord] | None:
        record = read(decode_pod(raw))
        return None if record is None else (record.pod, record)

    return decode


decode_record: Final = decoder_of(record_of)


def counted_record_of(pod: Pod) -> PodRecord | None:
    """As ``record_of``, with CPU requests; also returns records of bound pods that request nothing but CPU."""
    record = record_of(pod)
    cpu_milli = cpu_milli_of(pod) if pod.spec.node_name else 0
    if not cpu_milli:
        return record
    if record is None:
        record = bystander_of(pod)
        if record is None:
            return PodRecord(pod.metadata.uid, pod.key, pod.spec.node_name, finished=True)
    return msgspec.structs.replace(record, cpu_milli=cpu_milli)


def _both(recorded: Allocation, also: Allocation | None) -> Allocation:
    """The allocation of a pod whose record and containers name different GPUs: it holds both."""
    known = {share.uuid for share in recorded.gpus}
    additional = () if also is None else tuple(share for share in also.gpus if share.uuid not in known)
    return msgspec.structs.replace(recorded, gpus=(*recorded.gpus, *additional))
