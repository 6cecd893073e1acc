"""Pods that count GPUs (``aliyun.com/gpu``): which GPUs they should get, and what their records should say. Pure.

The kubelet gives each whole GPU to one container alone, whatever we say, so nothing has to be refused here: the scheduler's
decision is followed where it can be, else the nearest of the free GPUs are taken, and what the kubelet gave is written into
the record. A pod that another scheduler bound has no record, and gets one so.
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
from gpushare.nodeagent.allocate.pod_allocations import BoundPod
from gpushare.nodeagent.deviceplugin.device_ids import DeviceIds, in_order
from gpushare.nodeagent.errors import UnknownDeviceId
from gpushare.nodeagent.reconcile.allocation_patch import Correction

#: ``namespace/name`` → (container, resource) → device IDs, as the kubelet's pod resources list them.
DeviceListing = Mapping[str, Mapping[tuple[str, str], frozenset[str]]]


class WholePod(NamedTuple):
    """A pod, and the GPUs (UUIDs) that are recorded for each of its containers; none where nothing readable is."""

    pod: BoundPod
    decided: Mapping[str, frozenset[str]]

    @property
    def uid(self) -> str:
        """The pod's UID."""
        return self.pod.uid


class ExclusiveGpus:
    """The pods of one node that count GPUs, by UID."""

    def __init__(self) -> None:
        self._pods: dict[str, WholePod] = {}
        self.seen: NodeDevices | None = None
        """The node with the cordons that people wrote on it."""

    @property
    def pods(self) -> Collection[WholePod]:
        """All of them."""
        return self._pods.values()

    def get(self, uid: str) -> WholePod | None:
        """The pod of that UID, if it counts GPUs."""
        return self._pods.get(uid)

    def put(self, pod: BoundPod) -> None:
        """A pod was bound, or its record changed."""
        self._pods[pod.uid] = WholePod(pod, _decided(pod))

    def remove(self, uid: str) -> None:
        """A pod has finished or is gone."""
        self._pods.pop(uid, None)

    def prefer(
        self, node: NodeDevices, ids: DeviceIds, amount: int, available: Iterable[str], must: Sequence[str]
    ) -> list[str]:
        """The ``amount`` IDs of ``available`` that should be given next, ``must`` among them.

        Where nothing was decided, those that are neither promised to others nor cordoned, as long as there are enough.
        """
        free = {gpu: its[0] for gpu, its in ids.by_gpu([*available, *must]).items()}
        kept = ids.by_gpu(must).keys()
        waiting = [
            one.decided[container.name]
            for one in sorted(self._pods.values(), key=_since)
            for container in one.pod.request.containers
            if container.whole_gpus == amount and container.name in one.decided
        ]
        place = next((gpus for gpus in waiting if kept <= gpus <= free.keys()), None)
        if place is None:
            promised = frozenset(
                gpu for one in self._pods.values() for its in one.decided.values() for gpu in its
            )
            cordoned = (
                frozenset() if self.seen is None else {one.uuid for one in self.seen.devices if one.cordoned}
            )
            place = (
                _nearest(node, free.keys() - promised - cordoned | kept, amount, kept)
                or _nearest(node, free.keys() - promised | kept, amount, kept)
                or _nearest(node, free.keys(), amount, kept)
                or frozenset()
            )
        chosen = [free[gpu] for gpu in place]
        rest = [one for one in in_order(available) if one not in chosen and one not in must]
        return in_order(chosen) if len(chosen) == amount else [*must, *rest][:amount]

    def corrections(
        self, listing: DeviceListing, node: NodeDevices, ids: DeviceIds
    ) -> list[tuple[WholePod, Correction]]:
        """What to write on pods whose containers have other GPUs than is recorded, as the kubelet lists them."""
        found = []
        for one in self._pods.values():
            change = _correction(one, listing.get(one.pod.key, {}), node, ids)
            if change is not None:
                found.append((one, change))
        return found


def _since(one: WholePod) -> tuple[bool, str, str]:
    return one.pod.running, one.pod.created, one.pod.uid


def _nearest(
    node: NodeDevices, gpus: Collection[str], amount: int, must: Collection[str]
) -> frozenset[str] | None:
    places = {device.uuid: at for at, device in enumerate(node.devices)}
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
        return None  # written anew, from what the kubelet gave


def _correction(
    one: WholePod, given: Mapping[tuple[str, str], frozenset[str]], node: NodeDevices, ids: DeviceIds
) -> Correction | None:
    request = one.pod.request
    devices = {device.uuid: device for device in node.devices}
    has: dict[str, list[Device]] = {}
    try:
        for (container, resource), its in given.items():
            if resource == names.GPU_WHOLE:
                has[container] = [devices[gpu] for gpu in ids.gpus_of(its)]
    except UnknownDeviceId:
        return None  # of a GPU that is not found now
    if any(
        container.name not in has
        for container in request.containers
        if container.kind is not ContainerKind.INIT
    ):
        return None  # not all are served yet
    recorded = _recorded(one.pod)
    held = {device.uuid: device for its in has.values() for device in its}
    missing = request.gpu_count - len(held)
    if recorded is not None and missing > 0:
        # A larger init container had more, and the kubelet tells nothing of those: as decided, they are the pod's.
        more = [devices[gpu.uuid] for gpu in recorded.gpus if gpu.uuid in devices and gpu.uuid not in held]
        held |= {device.uuid: device for device in more[:missing]}
    shares = {device.uuid: _all_of(device, node) for device in held.values()}
    # Of init containers the kubelet tells nothing: what is recorded stays, as long as it is the pod's.
    untold = {} if recorded is None else recorded.containers
    actual = Allocation(
        tuple(sorted(shares.values(), key=lambda share: share.index)),
        {
            **{
                name: its
                for name, its in untold.items()
                if name not in has and all(share.uuid in shares for share in its)
            },
            **{
                name: tuple(sorted((shares[device.uuid] for device in its), key=lambda share: share.index))
                for name, its in has.items()
            },
        },
        node.unit,
    )
    if not actual.gpus or (recorded is not None and _places(recorded) == _places(actual)):
        return None
    return Correction(
        dict(allocation_annotations(actual, request, Stamp(0, assigned=True))), _note(recorded, actual)
    )


def _all_of(device: Device, node: NodeDevices) -> GpuShare:
    units = node.units_of(device)
    return share_of(device, units, units, 0)


def _places(allocation: Allocation) -> tuple[object, ...]:
    def of(shares: Iterable[GpuShare]) -> frozenset[tuple[str, int]]:
        return frozenset((share.uuid, share.index) for share in shares)

    return of(allocation.gpus), {name: of(shares) for name, shares in allocation.containers.items()}


def _note(recorded: Allocation | None, actual: Allocation) -> str:
    def worded(allocation: Allocation) -> str:
        return " and ".join(f"GPU {share.index}" for share in allocation.gpus)

    if recorded is None:
        return f"the kubelet gave {worded(actual)}; the pod's record says so now"
    if {share.uuid for share in recorded.gpus} == {share.uuid for share in actual.gpus}:
        return ""
    was = "was" if len(recorded.gpus) == 1 else "were"
    return (
        f"{worded(recorded)} {was} decided, the kubelet gave {worded(actual)}; the pod's record says so now"
    )
