"""Pods that request whole GPUs (``aliyun.com/gpu``): which GPUs they should get, and what their records should say. Pure.

The kubelet allocates each whole GPU to one container in any case, so nothing has to be refused here: the scheduler's decision
is followed if possible, else the closest free GPUs are taken, and what the kubelet allocated is recorded. That is also how a
pod that another scheduler bound gets a record.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from gpushare.api import names
from gpushare.api.allocation.allocation import Allocation, GpuShare, share_of
from gpushare.api.allocation.annotations import Stamp, allocation_annotations, read_allocation
from gpushare.api.errors import MalformedAllocation
from gpushare.api.node.device import Device, NodeDevices
from gpushare.api.node.topology import best_set
from gpushare.api.request.request import ContainerKind
from gpushare.nodeagent.allocate.grant_log import DeviceListing, DevicesByContainer
from gpushare.nodeagent.allocate.pod_allocations import BoundPod
from gpushare.nodeagent.deviceplugin.device_ids import DeviceIds, in_order
from gpushare.nodeagent.errors import UnknownDeviceId
from gpushare.nodeagent.reconcile.allocation_patch import RecordPatch, correction_note


class ExclusivePod(NamedTuple):
    """A pod, and the GPUs (UUIDs) that are recorded for each of its containers; empty without a readable record."""

    bound: BoundPod
    decided: Mapping[str, frozenset[str]]

    @property
    def uid(self) -> str:
        """The pod's UID."""
        return self.bound.uid


class ExclusivePods:
    """The pods of one node that request whole GPUs, by UID."""

    def __init__(self) -> None:
        self._pods: dict[str, ExclusivePod] = {}
        self.with_cordons: NodeDevices | None = None
        """The node with its cordoned GPUs."""

    @property
    def pods(self) -> Collection[ExclusivePod]:
        """All of them."""
        return self._pods.values()

    def get(self, uid: str) -> ExclusivePod | None:
        """The pod of that UID, if it requests whole GPUs."""
        return self._pods.get(uid)

    def put(self, pod: BoundPod) -> None:
        """A pod was bound, or its record changed."""
        self._pods[pod.uid] = ExclusivePod(pod, _decided(pod))

    def remove(self, uid: str) -> None:
        """A pod has finished or is gone."""
        self._pods.pop(uid, None)

    def prefer(
        self, node: NodeDevices, ids: DeviceIds, amount: int, available: Iterable[str], must: Sequence[str]
    ) -> list[str]:
        """The ``amount`` IDs of ``available`` to take next, ``must`` among them.

        If nothing was decided, prefers GPUs that are neither decided for other pods nor cordoned, as long as there are enough.
        """
        free = {gpu: gpu_ids[0] for gpu, gpu_ids in ids.by_gpu([*available, *must]).items()}
        required = ids.by_gpu(must).keys()
        waiting = [
            pod.decided[container.name]
            for pod in sorted(self._pods.values(), key=_since)
            for container in pod.bound.request.containers
            if container.whole_gpus == amount and container.name in pod.decided
        ]
        gpus = next((gpus for gpus in waiting if required <= gpus <= free.keys()), None)
        if gpus is None:
            reserved = frozenset(
                gpu for pod in self._pods.values() for decided in pod.decided.values() for gpu in decided
            )
            cordoned = (
                frozenset()
                if self.with_cordons is None
                else {device.uuid for device in self.with_cordons.devices if device.cordoned}
            )
            gpus = (
                _closest(node, free.keys() - reserved - cordoned | required, amount, required)
                or _closest(node, free.keys() - reserved | required, amount, required)
                or _closest(node, free.keys(), amount, required)
                or frozenset()
            )
        chosen = [free[gpu] for gpu in gpus]
        others = [one for one in in_order(available) if one not in chosen and one not in must]
        return in_order(chosen) if len(chosen) == amount else [*must, *others][:amount]

    def record_patches(
        self, listing: DeviceListing, node: NodeDevices, ids: DeviceIds
    ) -> list[tuple[ExclusivePod, RecordPatch]]:
        """What to write on pods whose containers have other GPUs than recorded, as the kubelet lists them."""
        patches = []
        for pod in self._pods.values():
            change = _record_patch(pod, listing.get(pod.bound.key, {}), node, ids)
            if change is not None:
                patches.append((pod, change))
        return patches


def _since(pod: ExclusivePod) -> tuple[bool, str, str]:
    return pod.bound.running, pod.bound.created, pod.bound.uid


def _closest(
    node: NodeDevices, gpus: Collection[str], amount: int, must: Collection[str]
) -> frozenset[str] | None:
    places = {device.uuid: row for row, device in enumerate(node.devices)}
    rows = best_set(
        node.near,
        tuple(device.numa_node for device in node.devices),
        [places[gpu] for gpu in gpus],
        amount,
        must=[places[gpu] for gpu in must],
    )
    return None if rows is None else frozenset(node.devices[row].uuid for row in rows)


def _decided(pod: BoundPod) -> dict[str, frozenset[str]]:
    allocation = _recorded(pod)
    if allocation is None:
        return {}
    return {name: frozenset(share.uuid for share in shares) for name, shares in allocation.containers.items()}


def _recorded(pod: BoundPod) -> Allocation | None:
    if names.ANN_SHARE not in pod.annotations:
        return None
    try:
        return read_allocation(pod.annotations, None)
    except MalformedAllocation:
        return None  # replaced by what the kubelet allocated


def _record_patch(
    pod: ExclusivePod, device_ids: DevicesByContainer, node: NodeDevices, ids: DeviceIds
) -> RecordPatch | None:
    request = pod.bound.request
    devices = {device.uuid: device for device in node.devices}
    has: dict[str, list[Device]] = {}
    try:
        for (container, resource), container_ids in device_ids.items():
            if resource == names.GPU_WHOLE:
                has[container] = [devices[gpu] for gpu in ids.gpus_of(container_ids)]
    except UnknownDeviceId:
        return None  # a device of a GPU that is currently missing
    if any(
        container.name not in has
        for container in request.containers
        if container.kind is not ContainerKind.INIT
    ):
        return None  # not all containers have their devices yet
    recorded = _recorded(pod.bound)
    held = {device.uuid: device for assigned in has.values() for device in assigned}
    missing = request.gpu_count - len(held)
    if recorded is not None and missing > 0:
        # A larger init container had more GPUs, which the kubelet does not list: the pod keeps them as decided.
        more = [devices[gpu.uuid] for gpu in recorded.gpus if gpu.uuid in devices and gpu.uuid not in held]
        held |= {device.uuid: device for device in more[:missing]}
    shares = {device.uuid: _all_of(device, node) for device in held.values()}
    # The kubelet does not list init containers: their record stays if its GPUs are the pod's.
    unlisted = {} if recorded is None else recorded.containers
    actual = Allocation(
        tuple(sorted(shares.values(), key=lambda share: share.index)),
        {
            **{
                name: recorded_shares
                for name, recorded_shares in unlisted.items()
                if name not in has and all(share.uuid in shares for share in recorded_shares)
            },
            **{
                name: tuple(
                    sorted((shares[device.uuid] for device in assigned), key=lambda share: share.index)
                )
                for name, assigned in has.items()
            },
        },
        node.unit,
    )
    if not actual.gpus or (recorded is not None and _gpus_of(recorded) == _gpus_of(actual)):
        return None
    return RecordPatch(
        dict(allocation_annotations(actual, request, Stamp(0, assigned=True))),
        f"the kubelet allocated {node.gpu_names([share.uuid for share in actual.gpus])}, which is recorded now"
        if recorded is None
        else correction_note(recorded, actual, node),
    )


def _all_of(device: Device, node: NodeDevices) -> GpuShare:
    units = node.units_of(device)
    return share_of(device, units, units, 0)


def _gpus_of(allocation: Allocation) -> tuple[object, ...]:
    def of(shares: Iterable[GpuShare]) -> frozenset[tuple[str, int]]:
        return frozenset((share.uuid, share.index) for share in shares)

    return of(allocation.gpus), {name: of(shares) for name, shares in allocation.containers.items()}
