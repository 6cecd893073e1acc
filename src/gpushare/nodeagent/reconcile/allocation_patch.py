"""What to write on a pod so that its record agrees with the devices that its containers really have. Pure.

Two pods with identical requests may have been mistaken for each other, or a pod moved to another GPU. The kubelet's list is the
truth: each pod's allocation is computed from it, and a record that differs is replaced as a whole. Where it agrees, only the
marks that the containers have their devices are set.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpushare.api import names
from gpushare.api.allocation.allocation import Allocation, GpuShare, allocated_share
from gpushare.api.allocation.annotations import Stamp, allocation_annotations
from gpushare.api.node.device import Device, NodeDevices
from gpushare.api.request.pluralize import counted
from gpushare.api.request.request import ContainerRequest, Request, effective_amount
from gpushare.nodeagent.allocate.grant_log import DevicesByContainer
from gpushare.nodeagent.allocate.pod_allocations import ALLOCATION_ANNOTATIONS, AllocatedPod, is_complete
from gpushare.nodeagent.deviceplugin.device_ids import DeviceIds
from gpushare.nodeagent.errors import UnknownDeviceId
from gpushare.process.log_setup import about

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecordPatch:
    """Annotations to set (``None``: to remove), and a note for people if a GPU changed.

    ``decides``: it says where a pod is to go, not where it is.
    """

    annotations: Mapping[str, str | None]
    note: str = ""
    decides: bool = False


def record_patch(
    pod: AllocatedPod, device_ids: DevicesByContainer, node: NodeDevices, ids: DeviceIds
) -> RecordPatch | None:
    """What to write on a pod whose containers have ``device_ids``; ``None`` if its record agrees."""
    if not is_complete(pod, device_ids):
        return None
    try:
        gpus = _gpus(pod, device_ids, ids)
    except UnknownDeviceId as error:
        logger.warning(
            "pod %s has a device of a GPU that is currently not found: %s",
            pod.key,
            error,
            extra=about(pod=pod.key, uid=pod.uid),
        )
        return None
    actual = _actual(pod, gpus, node)
    if actual is None:
        return None
    recorded = pod.bound.annotations
    stamp = Stamp(pod.assume_time_ns, assigned=True)
    if _same_gpus(pod, actual) and not pod.by_index:
        # Each existing generation of annotations is marked, and otherwise left as its writer recorded it.
        marks = {
            mark: "true"
            for mark, record in (
                (names.ANN_MEM_ASSIGNED, names.ANN_MEM_INDEX),
                (names.ANN_ASSIGNED, names.ANN_ALLOCATION),
            )
            if record in recorded and recorded.get(mark) != "true"
        }
        if not marks and names.ANN_ALSO not in recorded:
            return None
        # Together with the record that is marked: the API server may already have another one that we wrote, which the watch
        # has not shown yet.
        return RecordPatch({**recorded, **marks, names.ANN_ALSO: None})
    fresh = allocation_annotations(actual, pod.request, stamp)
    stale = {name: None for name in ALLOCATION_ANNOTATIONS if name in recorded and name not in fresh}
    stale[names.ANN_ALSO] = None  # the watch may not have shown it yet
    return RecordPatch({**fresh, **stale}, correction_note(pod.allocation, actual, node))


def correction_note(recorded: Allocation, actual: Allocation, node: NodeDevices) -> str:
    """That a pod was allocated other GPUs than recorded; empty if only their indices have changed, which is no news for the pod."""
    decided, allocated = _uuids(recorded, node), _uuids(actual, node)
    if decided == allocated:
        return ""
    return (
        f"{node.gpu_names(decided)} {_was(recorded)} allocated, but the kubelet assigned {node.gpu_names(allocated)}; "
        "the record was corrected"
    )


def announcement(pod: AllocatedPod, change: RecordPatch) -> RecordPatch | None:
    """What to write before ``change`` moves the record of a pod: where its containers are, in addition to the record.

    Records of swapped pods are corrected one after the other. So that none of their GPUs looks free in between, each counts on both
    until its turn. ``None`` if that is already written, or nothing moves.
    """
    if not change.note or pod.bound.annotations.get(names.ANN_ALSO) == change.annotations[names.ANN_SHARE]:
        return None
    return RecordPatch({names.ANN_ALSO: change.annotations[names.ANN_SHARE]})


def relocation_patch(
    pod: AllocatedPod, devices: Sequence[Device], node: NodeDevices, partner: AllocatedPod | None = None
) -> RecordPatch:
    """What to write on a waiting pod that is to go to ``devices``, because an identical pod has its own.

    With a GPU per container these are those that were decided for that ``partner``, container by container.
    """
    there = frozenset(device.uuid for device in devices)
    gpus = {one.name: there for one in pod.request.containers}
    if partner is not None and not pod.on_same_gpus:
        pairs = zip(pod.request.containers, partner.request.containers, strict=True)
        gpus = {one.name: partner.decided_gpus(their) for one, their in pairs}
    actual = allocation_at(pod, gpus, node)
    if actual is None:
        raise AssertionError(f"{[one.uuid for one in devices]} are not all GPUs of {node.name}")
    fresh = allocation_annotations(actual, pod.request, Stamp(pod.assume_time_ns, assigned=False))
    before, after = _uuids(pod.allocation, node), _uuids(actual, node)
    return RecordPatch(
        fresh,
        f"{node.gpu_names(before)} {_was(pod.allocation)} allocated, but assigned to a pod with an identical request; "
        f"{node.gpu_names(after)} {'is' if len(devices) == 1 else 'are'} allocated instead",
        decides=True,
    )


def allocation_at(
    pod: AllocatedPod, gpus: Mapping[str, frozenset[str]], node: NodeDevices
) -> Allocation | None:
    """The allocation of a pod whose containers (by name) are on these GPUs (UUIDs); ``None`` if ``node`` lacks one."""
    parts = {one.name: pod.request.part_of(one) for one in pod.request.containers}
    return _actual(pod, {name: dict.fromkeys(its, parts[name]) for name, its in gpus.items()}, node)


def _gpus(pod: AllocatedPod, device_ids: DevicesByContainer, ids: DeviceIds) -> dict[str, dict[str, int]]:
    """Container → UUID → units of memory, for every container of the request."""
    found: dict[str, dict[str, int]] = {}
    for (container, resource), its in device_ids.items():
        if resource == names.GPU_MEM:
            found[container] = ids.gpus_of(its)
    request = pod.request
    everywhere = frozenset(uuid for by_gpu in found.values() for uuid in by_gpu)
    for one in request.containers:
        by_gpu = found.get(one.name)
        # A finished init container had its app's devices, or was on the pod's GPUs. What the kubelet passes on of those of a
        # larger init container may lie on only some of the pod's GPUs.
        decided = pod.decided_gpus(one)
        if by_gpu is None or (by_gpu.keys() < decided and sum(by_gpu.values()) == one.memory_units):
            gpus = everywhere if len(everywhere) == request.gpu_count else decided
            found[one.name] = dict.fromkeys(gpus, request.part_of(one))
    return found


def _actual(pod: AllocatedPod, gpus: Mapping[str, Mapping[str, int]], node: NodeDevices) -> Allocation | None:
    devices = {device.uuid: device for device in node.devices}
    unit = pod.allocation.unit or node.unit
    containers: dict[str, tuple[GpuShare, ...]] = {}
    on_gpu: dict[str, list[ContainerRequest]] = {}
    for one in pod.request.containers:
        by_gpu = gpus[one.name]
        if sum(by_gpu.values()) != one.memory_units or len(by_gpu) != pod.request.gpu_count:
            logger.error(
                "pod %s, container %s: requested %s, has %s; its record is not changed",
                pod.key,
                one.name,
                f"{counted(pod.request.part_of(one), 'unit')} on each of {pod.request.gpu_count} GPUs",
                dict(by_gpu),
                extra=about(pod=pod.key, uid=pod.uid),
            )
            return None
        if not by_gpu.keys() <= devices.keys():
            return None
        there = sorted((devices[uuid] for uuid in by_gpu), key=lambda device: device.index)
        containers[one.name] = tuple(pod.share_on(device, one, unit) for device in there)
        for device in there:
            on_gpu.setdefault(device.uuid, []).append(one)
    shares = [_pod_share(pod.request, devices[uuid], containers, on) for uuid, on in on_gpu.items()]
    return Allocation(tuple(sorted(shares, key=lambda share: share.index)), containers, pod.allocation.unit)


def _pod_share(
    request: Request,
    device: Device,
    containers: Mapping[str, tuple[GpuShare, ...]],
    on: list[ContainerRequest],
) -> GpuShare:
    """What a pod holds of one GPU, by its existing containers."""
    device_units = max(
        share.device_units for one in on for share in containers[one.name] if share.uuid == device.uuid
    )
    units = effective_amount([(one.kind, request.part_of(one)) for one in on])
    core_percent = effective_amount([(one.kind, one.core_percent) for one in on])
    return allocated_share(device, device_units, request, units, core_percent)


def _same_gpus(pod: AllocatedPod, actual: Allocation) -> bool:
    return _by_gpu(pod.allocation) == _by_gpu(actual) and all(
        pod.decided_gpus(one) == {share.uuid for share in actual.containers[one.name]}
        for one in pod.request.containers
    )


def _by_gpu(allocation: Allocation) -> set[tuple[str, int]]:
    """The index counts too: older readers know GPUs by it, and it may change when the node restarts."""
    return {(share.uuid, share.index) for share in allocation.gpus}


def _was(allocation: Allocation) -> str:
    return "was" if len(allocation.gpus) == 1 else "were"


def _uuids(allocation: Allocation, node: NodeDevices) -> set[str]:
    """The UUIDs of its GPUs; a record by index names the GPU that has it."""
    devices = {share.uuid: node.device_of(share.uuid, share.index) for share in allocation.gpus}
    return {uuid if device is None else device.uuid for uuid, device in devices.items()}
