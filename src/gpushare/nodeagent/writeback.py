"""What a pod's record should say, given the devices that its containers really have. Pure.

Two pods that ask alike may have been taken for each other, or a pod moved to another GPU. The kubelet's list is
the truth: from it each pod's allocation is worked out again, and where it differs the record is
replaced whole. Where it agrees only the marks that the containers have their devices are set.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from gpushare.model import names
from gpushare.model.allocation import Allocation, GpuShare
from gpushare.model.device import Device, NodeDevices
from gpushare.model.quantity import granted_mib
from gpushare.model.request import ContainerKind, ContainerRequest, effective_amount
from gpushare.model.wire import Stamp, allocation_annotations
from gpushare.nodeagent.bound_pods import ALLOCATION_ANNOTATIONS, Claim
from gpushare.nodeagent.claims import amount_of
from gpushare.nodeagent.device_ids import DeviceIds
from gpushare.nodeagent.errors import UnknownDeviceId

logger = logging.getLogger(__name__)

type_of_given = Mapping[tuple[str, str], frozenset[str]]


@dataclass(frozen=True, slots=True)
class Correction:
    """Annotations to set (``None``: to remove), and what is told to people when a GPU changed."""

    annotations: Mapping[str, str | None]
    note: str = ""


def is_complete(claim: Claim, given: type_of_given) -> bool:
    """Whether all containers of the pod have what they ask for.

    The kubelet lists no devices of init containers; they were served when one after them is.
    """
    request = claim.pod.request
    lasting = [one for one in request.containers if one.kind is not ContainerKind.INIT]
    return all(
        (one.name, resource) in given
        for one in lasting or request.containers
        for resource in (names.GPU_MEM, names.GPU_CORE)
        if amount_of(one, resource)
    )


def correction(claim: Claim, given: type_of_given, node: NodeDevices, ids: DeviceIds) -> Correction | None:
    """What to write on a pod whose containers have ``given``; ``None`` when its record says so already."""
    if not is_complete(claim, given):
        return None
    try:
        gpus = _gpus(claim, given, ids)
    except UnknownDeviceId as error:
        logger.warning("pod %s has a device of a GPU that is not found now: %s", claim.pod.key, error)
        return None
    actual = _actual(claim, gpus, node)
    if actual is None:
        return None
    recorded = claim.pod.annotations
    stamp = Stamp(claim.assume_time_ns, assigned=True)
    if _same_place(claim, actual) and not claim.by_index:
        # Each generation that is there is marked; what its writer recorded is left as it is.
        marks = {
            mark: "true"
            for mark, record in (
                (names.ANN_MEM_ASSIGNED, names.ANN_MEM_INDEX),
                (names.ANN_ASSIGNED, names.ANN_ALLOCATION),
            )
            if record in recorded and recorded.get(mark) != "true"
        }
        again = {names.ANN_ALSO: None} if names.ANN_ALSO in recorded else {}
        return Correction({**marks, **again}) if marks or again else None
    fresh = allocation_annotations(actual, claim.pod.request, stamp)
    stale = {name: None for name in ALLOCATION_ANNOTATIONS if name in recorded and name not in fresh}
    stale[names.ANN_ALSO] = None  # the watch may not have shown it yet
    before, after = _places(claim.allocation), _places(actual)
    note = (
        f"{before} was decided, the kubelet gave {after}; the pod's record says so now"
        if before != after
        else ""
    )
    return Correction({**fresh, **stale}, note)


def announcement(claim: Claim, change: Correction) -> Correction | None:
    """What to write before ``change`` moves the record of a pod: where its containers are, beside the record.

    Records of pods that were taken for each other are corrected one after the other. So that none of their places
    looks free in between, each is counted in both places until its turn; ``None`` when it says so already, or
    nothing moves.
    """
    if not change.note or claim.pod.annotations.get(names.ANN_ALSO) == change.annotations[names.ANN_SHARE]:
        return None
    return Correction({names.ANN_ALSO: change.annotations[names.ANN_SHARE]})


def relocation(claim: Claim, device: Device, node: NodeDevices) -> Correction:
    """What to write on a waiting pod that is to go to ``device``: its own GPU has gone to one that asked alike."""
    gpus = {one.name: {device.uuid: one.memory_units} for one in claim.pod.request.containers}
    actual = _actual(claim, gpus, node)
    if actual is None:
        raise AssertionError(f"{device.uuid} is none of the GPUs of {node.name}")
    fresh = allocation_annotations(actual, claim.pod.request, Stamp(claim.assume_time_ns, assigned=False))
    before, after = _places(claim.allocation), _places(actual)
    return Correction(
        fresh, f"{before} was decided, but went to a pod that asks for as much; {after} is decided instead"
    )


def _gpus(claim: Claim, given: type_of_given, ids: DeviceIds) -> dict[str, dict[str, int]]:
    """Container → UUID → units of memory, for every container of the request."""
    found: dict[str, dict[str, int]] = {}
    for (container, resource), device_ids in given.items():
        if resource == names.GPU_MEM:
            found[container] = ids.gpus_of(device_ids)
    everywhere = {uuid for by_gpu in found.values() for uuid in by_gpu}
    for one in claim.pod.request.containers:
        if one.name not in found:
            # A finished init container had its app's devices, or lay where the pod lies.
            place = next(iter(everywhere)) if len(everywhere) == 1 else claim.decided(one).uuid
            found[one.name] = {place: one.memory_units}
    return found


def _actual(claim: Claim, gpus: Mapping[str, Mapping[str, int]], node: NodeDevices) -> Allocation | None:
    devices = {device.uuid: device for device in node.devices}
    unit = claim.allocation.unit or node.unit
    containers: dict[str, tuple[GpuShare, ...]] = {}
    on_gpu: dict[str, list[ContainerRequest]] = {}
    for one in claim.pod.request.containers:
        by_gpu = gpus[one.name]
        if sum(by_gpu.values()) != one.memory_units or len(by_gpu) != 1:
            logger.error(
                "pod %s, container %s: asked for %d units, has %s; its record is left alone",
                claim.pod.key,
                one.name,
                one.memory_units,
                dict(by_gpu),
            )
            return None
        uuid = next(iter(by_gpu))
        device = devices.get(uuid)
        if device is None:
            return None
        containers[one.name] = (claim.share_on(device, one, unit),)
        on_gpu.setdefault(uuid, []).append(one)
    shares = [_pod_share(devices[uuid], containers, on) for uuid, on in on_gpu.items()]
    return Allocation(tuple(sorted(shares, key=lambda share: share.index)), containers, claim.allocation.unit)


def _pod_share(
    device: Device, containers: Mapping[str, tuple[GpuShare, ...]], on: list[ContainerRequest]
) -> GpuShare:
    """What a pod holds of one GPU, by those of its containers that lie there."""
    device_units = max(containers[one.name][0].device_units for one in on)
    units = effective_amount([(one.kind, one.memory_units) for one in on])
    core_percent = effective_amount([(one.kind, one.core_percent) for one in on])
    mib = granted_mib(device.total_mib, units, device_units)
    return GpuShare(device.uuid, device.index, mib, units, device_units, core_percent)


def _same_place(claim: Claim, actual: Allocation) -> bool:
    return _by_gpu(claim.allocation) == _by_gpu(actual) and all(
        claim.decided(one).uuid == actual.containers[one.name][0].uuid for one in claim.pod.request.containers
    )


def _by_gpu(allocation: Allocation) -> set[tuple[str, int]]:
    """The index counts too: old readers know GPUs by it, and it may change with a restart of the node."""
    return {(share.uuid, share.index) for share in allocation.gpus}


def _places(allocation: Allocation) -> str:
    return " and ".join(
        f"GPU {share.index}" for share in sorted(allocation.gpus, key=lambda share: share.index)
    )
