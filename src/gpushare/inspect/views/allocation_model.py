"""From nodes and pods to who holds how much: pure, and never a guess.

Figures are in the unit that a node counts in now. What a pod was given in another unit is converted from
its MiB, per GPU and rounded up once, so that eight pods of 128 MiB are one GiB and not eight.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from gpushare.api import names
from gpushare.api.allocation.allocation import Allocation, GpuShare
from gpushare.api.allocation.annotations import read_allocation
from gpushare.api.errors import InvalidQuantity, ModelError
from gpushare.api.node.device import Device, NodeDevices, idle_cordons, mode_of, node_devices
from gpushare.api.node.enforcement_text import not_given
from gpushare.api.objects import Node, Pod
from gpushare.api.quantity import MemoryUnit, parse_amount
from gpushare.api.request.request import request_of, requests_share

#: What ACK and its predecessors label a GPU's size with, as nvidia-smi prints it: ``16160MiB``.
_LABEL_GPU_SIZE: Final = "aliyun.accelerator/nvidia_mem"


class PodShare(NamedTuple):
    """What a pod holds on one GPU: ``units`` of the node's present unit (rounded up), MiB, percent.

    ``as_given``: the units are those that it was given, and not converted from another unit. ``containers``: those
    that have a part of it, where not all containers of the pod have the same GPUs.
    """

    device: Device
    units: int
    mib: int
    core_percent: int
    as_given: bool = True
    containers: "tuple[str, ...] | None" = None


class PodUsage(NamedTuple):
    """A pod and its shares, by GPU index; without shares it waits with ``pending_*`` for a GPU."""

    namespace: str
    name: str
    uid: str
    phase: str
    shares: tuple[PodShare, ...]
    pending_units: int = 0
    pending_core_percent: int = 0

    def units_on(self, device: Device) -> int:
        """Units that the pod holds on ``device``."""
        return next((share.units for share in self.shares if share.device is device), 0)

    def core_percent_on(self, device: Device) -> int:
        """Percent of ``device``'s compute that the pod holds."""
        return next((share.core_percent for share in self.shares if share.device is device), 0)


class GpuUsage(NamedTuple):
    """One GPU: units and MiB that pods hold and that there are, and percent of compute held."""

    device: Device
    used_units: int
    total_units: int
    used_mib: int
    used_core_percent: int


class NodeUsage(NamedTuple):
    """One node. ``pods`` are ordered by their first GPU, those on no GPU yet last."""

    devices: NodeDevices
    address: str
    gpus: tuple[GpuUsage, ...]
    pods: tuple[PodUsage, ...]
    has_pending: bool
    pending_units: int
    pending_core_percent: int
    total_core_percent: int
    cordoned: bool = False
    """Whether Kubernetes itself places nothing new there: ``spec.unschedulable``."""

    @property
    def name(self) -> str:
        """The node's name."""
        return self.devices.name

    @property
    def unit(self) -> MemoryUnit:
        """The unit that the node counts in."""
        return self.devices.unit

    @property
    def closed(self) -> str:
        """Why nothing new is placed here at present, empty when there is no such reason."""
        mode = self.devices.mode
        return self.devices.refusal or ("" if mode.shares_memory else mode.no_memory_text)

    @property
    def out_of_service(self) -> tuple[str, ...]:
        """What people should know of GPUs that nobody is given, a text each."""
        return tuple(
            f"GPU {gpu.device.index} of node {self.name} is {_why(gpu.device)}"
            for gpu in self.gpus
            if not gpu.device.in_service
        )

    @property
    def not_isolated(self) -> str:
        """That isolation is asked for there and not given, and why; empty where it is not so."""
        why = not_given(self.devices)
        return (
            f"containers on node {self.name} see their share, but nothing enforces it: {why}" if why else ""
        )

    @property
    def used_units(self) -> int:
        """Units held on the node, those on no GPU yet included."""
        return sum(gpu.used_units for gpu in self.gpus) + self.pending_units

    @property
    def total_units(self) -> int:
        """Units that the node has."""
        return sum(gpu.total_units for gpu in self.gpus)

    @property
    def used_core_percent(self) -> int:
        """Compute held on the node, in percent of one GPU."""
        return sum(gpu.used_core_percent for gpu in self.gpus) + self.pending_core_percent


class ClusterUsage(NamedTuple):
    """The nodes that share GPU memory, in the order given, and what could not be understood."""

    nodes: tuple[NodeUsage, ...]
    warnings: tuple[str, ...]

    @property
    def units(self) -> tuple[MemoryUnit, ...]:
        """The units that the nodes count in, each once, in order of appearance."""
        return tuple(dict.fromkeys(node.unit for node in self.nodes))

    @property
    def remarks(self) -> tuple[str, ...]:
        """What people should know beside the figures, a text each."""
        return (*self.warnings, *self.cordoned, *self.closed)

    @property
    def closed(self) -> tuple[str, ...]:
        """Of nodes that count in the sums and give nothing at present, a text each; what is wrong with their labels is warned of besides."""
        return tuple(
            f"node {node.name} counts here, and takes nothing new: {node.closed}"
            for node in self.nodes
            if node.closed and not node.devices.problem
        )

    @property
    def cordoned(self) -> tuple[str, ...]:
        """What people should know of nodes whose free room nobody is given, a text each."""
        return tuple(
            f"node {node.name} is cordoned: nothing new is placed there until `kubectl uncordon {node.name}`; what runs there stays"
            for node in self.nodes
            if node.cordoned
        )


def usage_of(nodes: Iterable[Node], pods: Iterable[Pod], *, whole: bool = False) -> ClusterUsage:
    """Who holds what, on the nodes that have ``aliyun.com/gpu-mem``.

    A node without it is shown all the same while pods hold memory of GPUs that its annotation still
    describes (its mode was switched, or its agent is gone); with ``whole`` also where they hold whole GPUs alone. Nodes and pods that cannot be understood
    are left out, and named in ``warnings``.
    """
    by_node: dict[str, list[Pod]] = {}
    for pod in pods:
        if pod.spec.node_name and not pod.finished:
            by_node.setdefault(pod.spec.node_name, []).append(pod)
    warnings: list[str] = []
    shown: list[NodeUsage] = []
    for node in nodes:
        try:
            usage = _node_usage(node, by_node.get(node.metadata.name, ()), warnings, whole=whole)
        except ModelError as error:
            warnings.append(f"{error}; the node is left out")
            continue
        if usage is not None:
            shown.append(usage)
    return ClusterUsage(tuple(shown), tuple(warnings))


def _why(device: Device) -> str:
    if device.healthy:
        return f"out of service: cordoned (annotation {names.ANN_CORDONED}); what runs there stays"
    return f"out of service: {device.reason or 'no reason given'}" if device.ails else device.reason


def percent(used: int, total: int) -> int:
    """``used`` of ``total`` in percent, cut off; 0 of 0 is 0."""
    return used * 100 // total if total else 0


def _node_usage(node: Node, pods: Sequence[Pod], warnings: list[str], *, whole: bool) -> NodeUsage | None:
    advertised = _advertised(node, names.GPU_MEM)
    described = names.ANN_DEVICES in (node.metadata.annotations or {})
    if not advertised and not (pods and described):
        # Its GPUs vanish from the table where somebody mistypes its label: that is told. Raises ``ModelError``.
        mode_of(node)
        return None
    devices = node_devices(node) if described else node_devices(node, unit=_unit_of_foreign(node, advertised))
    if devices is None or not devices.devices:
        return None
    if devices.problem:
        warnings.append(f"node {devices.name}: {devices.problem}; until then nothing new is placed there")
    idle = idle_cordons(node, devices.devices)
    if idle:
        warnings.append(f"node {devices.name}: {idle}")
    unit_mib = devices.unit.mib
    gpus = [_Gpu(device, device.total_mib // unit_mib) for device in devices.devices]
    by_uuid = {gpu.device.uuid: gpu for gpu in gpus}

    def gpu_of(share: GpuShare) -> _Gpu | None:
        gpu = by_uuid.get(share.uuid)
        if gpu is None:
            device = devices.device_of(share.uuid, share.index)
            gpu = None if device is None else by_uuid[device.uuid]
        return gpu

    usages: list[PodUsage] = []
    shared = False
    for pod in pods:
        try:
            usage = _pod_usage(pod, devices, gpu_of)
        except ModelError as error:
            warnings.append(f"{error}; it is not counted: delete the pod, so that it is placed again")
            continue
        if usage is not None:
            usages.append(usage)
            shared = shared or whole or not _counts_gpus(pod)
    if not advertised and not shared:
        return None
    waiting = [usage for usage in usages if not usage.shares]
    has_core = (
        devices.mode.gives_core
        or _advertised(node, names.GPU_CORE) > 0
        or any(share.core_percent for usage in usages for share in usage.shares)  # from before a switch
    )
    usages.sort(key=lambda usage: usage.shares[0].device.index if usage.shares else len(devices.devices))
    return NodeUsage(
        devices=devices,
        address=_address(node),
        gpus=tuple(gpu.usage() for gpu in gpus),
        pods=tuple(usages),
        has_pending=bool(waiting),
        pending_units=sum(usage.pending_units for usage in waiting),
        pending_core_percent=sum(usage.pending_core_percent for usage in waiting),
        total_core_percent=100 * len(devices.devices) if has_core else 0,
        cordoned=node.spec.unschedulable,
    )


class _Gpu:
    """Adds up what pods hold on one GPU."""

    __slots__ = ("converted_mib", "core_percent", "device", "mib", "total_units", "units")

    def __init__(self, device: Device, total_units: int) -> None:
        self.device = device
        self.total_units = total_units
        self.units = 0
        self.mib = 0
        self.converted_mib = 0
        self.core_percent = 0

    def add(self, share: GpuShare, containers: "tuple[str, ...] | None") -> PodShare:
        units, as_given = share.units, share.device_units == self.total_units
        if as_given:
            self.units += units
        else:
            units = self._converted(share.mib)
            self.converted_mib += share.mib
        self.mib += share.mib
        self.core_percent += share.core_percent
        return PodShare(self.device, units, share.mib, share.core_percent, as_given, containers)

    def usage(self) -> GpuUsage:
        units = self.units
        if self.converted_mib:
            units = max(units, min(units + self._converted(self.converted_mib), self.total_units))
        return GpuUsage(self.device, units, self.total_units, self.mib, self.core_percent)

    def _converted(self, mib: int) -> int:
        return min(self.total_units, -(-mib * self.total_units // self.device.total_mib))


def _pod_usage(pod: Pod, devices: NodeDevices, gpu_of: Callable[[GpuShare], _Gpu | None]) -> PodUsage | None:
    subject = f"pod {pod.key}"
    meta = pod.metadata
    if not requests_share(pod):
        return None  # as the scheduler counts: what it carries is no record
    allocation = read_allocation(meta.annotations or {}, devices, subject)
    if allocation is not None:
        shares = _shares(allocation, devices, gpu_of, subject)
        return PodUsage(meta.namespace, meta.name, meta.uid, pod.status.phase, shares)
    request = request_of(pod)
    if request is None or request.by_gpu:
        return None
    waiting = (request.memory_units * request.gpu_count, request.core_percent * request.gpu_count)
    return PodUsage(meta.namespace, meta.name, meta.uid, pod.status.phase, (), *waiting)


def _counts_gpus(pod: Pod) -> bool:
    """Whether it asks for whole GPUs by their number, which is no memory of a GPU that people would look for."""
    try:
        request = request_of(pod)
    except ModelError:
        return False
    return request is not None and request.by_gpu


def _shares(
    allocation: Allocation, devices: NodeDevices, gpu_of: Callable[[GpuShare], _Gpu | None], subject: str
) -> tuple[PodShare, ...]:
    containers = allocation.containers_by_gpu()
    placed: list[tuple[_Gpu, GpuShare, tuple[str, ...] | None]] = []
    for number, share in enumerate(allocation.gpus):
        gpu = gpu_of(share)
        if gpu is None:
            raise ModelError(
                subject,
                f"holds {share.mib} MiB of GPU {share.index} ({share.uuid}), which node {devices.name} has no longer",
            )
        placed.append((gpu, share, containers[number] if containers else None))
    if len(placed) > 1:
        placed.sort(key=lambda one: one[0].device.index)
    return tuple([gpu.add(share, its_containers) for gpu, share, its_containers in placed])


def _advertised(node: Node, resource: str) -> int:
    """What the node has of ``resource``, by capacity or by allocatable, whichever is more."""
    most = 0
    for amounts in (node.status.capacity, node.status.allocatable):
        if amounts and resource in amounts:
            try:
                most = max(most, parse_amount(amounts[resource], f"{resource} in its status"))
            except InvalidQuantity as error:
                raise ModelError(f"node {node.metadata.name}", str(error)) from None
    return most


def _unit_of_foreign(node: Node, advertised: int) -> MemoryUnit:
    """The unit of a node that another agent looks after, by the size that its label gives a GPU.

    GiB, the documented default, where there is no such label or it fits neither unit.
    """
    size = (node.metadata.labels or {}).get(_LABEL_GPU_SIZE, "").removesuffix("MiB").strip()
    count = _advertised(node, names.GPU_COUNT)
    if size.isascii() and size.isdecimal() and len(size) < 10 and count:
        for unit in MemoryUnit:
            if unit.count_in(int(size)) == advertised // count:
                return unit
    return MemoryUnit.GIB


def _address(node: Node) -> str:
    for address in node.status.addresses or ():
        if address.type == "InternalIP":
            return address.address
    return "unknown"
