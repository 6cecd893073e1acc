"""What a pod's record should say, given the devices that its containers really have. Pure.

Two pods that ask alike may have been taken for each other, or a pod moved to another GPU. The kubelet's list is
the truth: from it each pod's allocation is worked out again, and where it differs the record is
replaced whole. Where it agrees only the marks that the containers have their devices are set.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpushare.api import names
from gpushare.api.allocation.allocation import Allocation, GpuShare, given_share
from gpushare.api.allocation.annotations import Stamp, allocation_annotations
from gpushare.api.node.device import Device, NodeDevices
from gpushare.api.request.pluralize import counted
from gpushare.api.request.request import ContainerRequest, Request, effective_amount
from gpushare.nodeagent.allocate.pod_allocations import ALLOCATION_ANNOTATIONS, Claim
from gpushare.nodeagent.allocate.requested_devices import is_complete
from gpushare.nodeagent.deviceplugin.device_ids import DeviceIds
from gpushare.nodeagent.errors import UnknownDeviceId
from gpushare.process.log_setup import about

logger = logging.getLogger(__name__)

DevicesByContainer = Mapping[tuple[str, str], frozenset[str]]


@dataclass(frozen=True, slots=True)
class Correction:
    """Annotations to set (``None``: to remove), and what is told to people when a GPU changed.

    ``decides``: it says where a pod shall go, not where it is.
    """

    annotations: Mapping[str, str | None]
    note: str = ""
    decides: bool = False


def correction(
    claim: Claim, given: DevicesByContainer, node: NodeDevices, ids: DeviceIds
) -> Correction | None:
    """What to write on a pod whose containers have ``given``; ``None`` when its record says so already."""
    if not is_complete(claim, given):
        return None
    try:
        gpus = _gpus(claim, given, ids)
    except UnknownDeviceId as error:
        logger.warning(
            "pod %s has a device of a GPU that is not found now: %s",
            claim.pod.key,
            error,
            extra=about(pod=claim.pod.key, uid=claim.uid),
        )
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
        if not marks and names.ANN_ALSO not in recorded:
            return None
        # With the record that is marked, for the API server may have another by now: one that we wrote, and that the
        # watch has not shown yet.
        return Correction({**recorded, **marks, names.ANN_ALSO: None})
    fresh = allocation_annotations(actual, claim.request, stamp)
    stale = {name: None for name in ALLOCATION_ANNOTATIONS if name in recorded and name not in fresh}
    stale[names.ANN_ALSO] = None  # the watch may not have shown it yet
    before, after = _places(claim.allocation), _places(actual)
    note = (
        f"{before} {_was(claim.allocation)} decided, the kubelet gave {after}; the pod's record says so now"
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


def relocation(
    claim: Claim, devices: Sequence[Device], node: NodeDevices, twin: Claim | None = None
) -> Correction:
    """What to write on a waiting pod that is to go to ``devices``: one of its own has gone to one that asked alike.

    With a GPU for each container these are what was decided for that ``twin``, container by container.
    """
    there = frozenset(device.uuid for device in devices)
    places = {one.name: there for one in claim.request.containers}
    if twin is not None and not claim.is_together:
        pairs = zip(claim.request.containers, twin.request.containers, strict=True)
        places = {one.name: twin.place(their) for one, their in pairs}
    actual = allocation_at(claim, places, node)
    if actual is None:
        raise AssertionError(f"{[one.uuid for one in devices]} are not all GPUs of {node.name}")
    fresh = allocation_annotations(actual, claim.request, Stamp(claim.assume_time_ns, assigned=False))
    before, after = _places(claim.allocation), _places(actual)
    return Correction(
        fresh,
        f"{before} {_was(claim.allocation)} decided, but went to a pod that asks for as much; "
        f"{after} {'is' if len(devices) == 1 else 'are'} decided instead",
        decides=True,
    )


def allocation_at(claim: Claim, places: Mapping[str, frozenset[str]], node: NodeDevices) -> Allocation | None:
    """What a pod holds whose containers (by name) lie on these GPUs (UUIDs); ``None`` where ``node`` has not all of them."""
    parts = {one.name: claim.request.part_of(one) for one in claim.request.containers}
    return _actual(claim, {name: dict.fromkeys(place, parts[name]) for name, place in places.items()}, node)


def _gpus(claim: Claim, given: DevicesByContainer, ids: DeviceIds) -> dict[str, dict[str, int]]:
    """Container → UUID → units of memory, for every container of the request."""
    found: dict[str, dict[str, int]] = {}
    for (container, resource), device_ids in given.items():
        if resource == names.GPU_MEM:
            found[container] = ids.gpus_of(device_ids)
    request = claim.request
    everywhere = frozenset(uuid for by_gpu in found.values() for uuid in by_gpu)
    for one in request.containers:
        by_gpu = found.get(one.name)
        # A finished init container had its app's devices, or lay where the pod lies. What the kubelet hands on of those of
        # a larger init container may lie on a part of the pod's GPUs alone.
        decided = claim.place(one)
        if by_gpu is None or (by_gpu.keys() < decided and sum(by_gpu.values()) == one.memory_units):
            place = everywhere if len(everywhere) == request.gpu_count else decided
            found[one.name] = dict.fromkeys(place, request.part_of(one))
    return found


def _actual(claim: Claim, gpus: Mapping[str, Mapping[str, int]], node: NodeDevices) -> Allocation | None:
    devices = {device.uuid: device for device in node.devices}
    unit = claim.allocation.unit or node.unit
    containers: dict[str, tuple[GpuShare, ...]] = {}
    on_gpu: dict[str, list[ContainerRequest]] = {}
    for one in claim.request.containers:
        by_gpu = gpus[one.name]
        if sum(by_gpu.values()) != one.memory_units or len(by_gpu) != claim.request.gpu_count:
            logger.error(
                "pod %s, container %s: asked for %s, has %s; its record is left alone",
                claim.pod.key,
                one.name,
                f"{counted(claim.request.part_of(one), 'unit')} on each of {claim.request.gpu_count} GPUs",
                dict(by_gpu),
                extra=about(pod=claim.pod.key, uid=claim.uid),
            )
            return None
        if not by_gpu.keys() <= devices.keys():
            return None
        there = sorted((devices[uuid] for uuid in by_gpu), key=lambda device: device.index)
        containers[one.name] = tuple(claim.share_on(device, one, unit) for device in there)
        for device in there:
            on_gpu.setdefault(device.uuid, []).append(one)
    shares = [_pod_share(claim.request, devices[uuid], containers, on) for uuid, on in on_gpu.items()]
    return Allocation(tuple(sorted(shares, key=lambda share: share.index)), containers, claim.allocation.unit)


def _pod_share(
    request: Request,
    device: Device,
    containers: Mapping[str, tuple[GpuShare, ...]],
    on: list[ContainerRequest],
) -> GpuShare:
    """What a pod holds of one GPU, by those of its containers that lie there."""
    device_units = max(
        share.device_units for one in on for share in containers[one.name] if share.uuid == device.uuid
    )
    units = effective_amount([(one.kind, request.part_of(one)) for one in on])
    core_percent = effective_amount([(one.kind, one.core_percent) for one in on])
    return given_share(device, device_units, request, units, core_percent)


def _same_place(claim: Claim, actual: Allocation) -> bool:
    return _by_gpu(claim.allocation) == _by_gpu(actual) and all(
        claim.place(one) == {share.uuid for share in actual.containers[one.name]}
        for one in claim.request.containers
    )


def _by_gpu(allocation: Allocation) -> set[tuple[str, int]]:
    """The index counts too: old readers know GPUs by it, and it may change with a restart of the node."""
    return {(share.uuid, share.index) for share in allocation.gpus}


def _was(allocation: Allocation) -> str:
    return "was" if len(allocation.gpus) == 1 else "were"


def _places(allocation: Allocation) -> str:
    return " and ".join(
        f"GPU {share.index}" for share in sorted(allocation.gpus, key=lambda share: share.index)
    )
