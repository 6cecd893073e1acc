"""Computes allocations from nodes and pods, without I/O.

Figures are in the node's current unit. Shares that were allocated in another unit are converted from their MiB. They are summed per GPU
and rounded up once, so eight pods of 128 MiB count as 1 GiB, not 8.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from gpushare.api import names
from gpushare.api.allocation.allocation import Allocation, GpuShare
from gpushare.api.allocation.annotations import read_allocation
from gpushare.api.allocation.resource_claim import ResourceClaim, holding_of
from gpushare.api.errors import InvalidQuantity, ModelError
from gpushare.api.node.device import Device, NodeDevices, driver_fault, idle_cordons, mode_of, node_devices
from gpushare.api.node.enforcement_text import isolation_failure
from gpushare.api.objects import Node, Pod
from gpushare.api.quantity import MemoryUnit, parse_amount
from gpushare.api.request.gpu_selection import GpuSelection, bound_selection
from gpushare.api.request.request import request_of, requests_share

#: Label of ACK and its predecessors with a GPU's size, as nvidia-smi prints it: ``16160MiB``.
_LABEL_GPU_SIZE: Final = "aliyun.accelerator/nvidia_mem"


class PodShare(NamedTuple):
    """What a pod holds on one GPU: ``units`` of the node's current unit (rounded up), MiB, percent.

    ``in_node_unit``: the units are those allocated, not converted from another unit. ``containers``: those with a part of the share, set
    only where containers of the pod have different GPUs. ``limit_mib``: what the pod may use while the GPU has it free; 0: its share.
    """

    device: Device
    units: int
    mib: int
    core_percent: int
    in_node_unit: bool = True
    containers: "tuple[str, ...] | None" = None
    limit_mib: int = 0


class PodUsage(NamedTuple):
    """A pod and its shares, by GPU index; without shares, ``pending_*`` is what it requests and has no GPU for yet.

    With a ``claim``, the ResourceClaim of that name holds the shares: ``name`` lists its ``users``, the pods that may use it, and ``uid``
    is the claim's.
    """

    namespace: str
    name: str
    uid: str
    phase: str
    shares: tuple[PodShare, ...]
    pending_units: int = 0
    pending_core_percent: int = 0
    claim: str = ""
    selection: GpuSelection | None = None
    users: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """``namespace/name`` of the pod, or of those that may use the claim."""
        return tuple(f"{self.namespace}/{name}" for name in (self.users if self.claim else (self.name,)))

    def units_on(self, device: Device) -> int:
        """Units that the pod holds on ``device``."""
        return next((share.units for share in self.shares if share.device is device), 0)

    def core_percent_on(self, device: Device) -> int:
        """Percent of ``device``'s compute that the pod holds."""
        return next((share.core_percent for share in self.shares if share.device is device), 0)


class GpuUsage(NamedTuple):
    """One GPU: allocated and total units, allocated MiB, and allocated percent of compute."""

    device: Device
    used_units: int
    total_units: int
    used_mib: int
    used_core_percent: int

    @property
    def free_units(self) -> int:
        """Units that can be allocated: what is used without an allocation is not free."""
        free_mib = max(self.device.total_mib - self.used_mib - self.device.foreign_mib, 0)
        # As the scheduler's ledger counts: the largest request whose MiB are at most the free ones.
        room_units = ((free_mib + 1) * self.total_units - 1) // self.device.total_mib
        return max(min(self.total_units - self.used_units, room_units), 0)


class NodeUsage(NamedTuple):
    """One node. ``pods`` are ordered by their first GPU; pods without a GPU come last."""

    devices: NodeDevices
    address: str
    gpus: tuple[GpuUsage, ...]
    pods: tuple[PodUsage, ...]
    has_pending: bool
    pending_units: int
    pending_core_percent: int
    total_core_percent: int
    cordoned: bool = False
    """Whether the node is cordoned in Kubernetes: ``spec.unschedulable``."""

    @property
    def name(self) -> str:
        """The node's name."""
        return self.devices.name

    @property
    def unit(self) -> MemoryUnit:
        """The node's memory unit."""
        return self.devices.unit

    @property
    def closed(self) -> str:
        """Why the node takes no new pods at present; else empty."""
        mode = self.devices.mode
        return self.devices.refusal or ("" if mode.shares_memory or mode.claims else mode.no_memory_text)

    @property
    def out_of_service(self) -> tuple[str, ...]:
        """Messages about GPUs that get no new allocations."""
        return tuple(
            f"GPU {gpu.device.label} of node {self.name} is {_out_of_service_reason(gpu.device)}"
            for gpu in self.gpus
            if not gpu.device.in_service
        )

    @property
    def foreign_use(self) -> tuple[str, ...]:
        """Messages about memory that is used without an allocation, and therefore not free."""
        return tuple(
            f"node {self.name}: {gpu.device.foreign_text}: {gpu.free_units} of its {gpu.total_units} units can be allocated"
            for gpu in self.gpus
            if gpu.device.foreign_mib
        )

    @property
    def not_isolated(self) -> str:
        """A message if the node's mode includes isolation but nothing enforces it; else empty."""
        reason = isolation_failure(self.devices)
        return (
            f"containers on node {self.name} see their share, but nothing enforces it: {reason}"
            if reason
            else ""
        )

    @property
    def used_units(self) -> int:
        """Units allocated on the node, including those of pods without a GPU yet."""
        return sum(gpu.used_units for gpu in self.gpus) + self.pending_units

    @property
    def total_units(self) -> int:
        """Total units of the node."""
        return sum(gpu.total_units for gpu in self.gpus)

    @property
    def used_core_percent(self) -> int:
        """Compute allocated on the node, in percent of one GPU."""
        return sum(gpu.used_core_percent for gpu in self.gpus) + self.pending_core_percent


class ClusterUsage(NamedTuple):
    """The nodes that share GPU memory, in input order, and warnings about objects that could not be parsed."""

    nodes: tuple[NodeUsage, ...]
    warnings: tuple[str, ...]

    @property
    def units(self) -> tuple[MemoryUnit, ...]:
        """The distinct units of the nodes, in order of appearance."""
        return tuple(dict.fromkeys(node.unit for node in self.nodes))

    @property
    def remarks(self) -> tuple[str, ...]:
        """All messages for the user."""
        return (*self.warnings, *self.cordoned, *self.closed)

    @property
    def closed(self) -> tuple[str, ...]:
        """Messages about nodes that count in the sums but take no new pods; problems with labels are in ``warnings``."""
        return tuple(
            f"node {node.name} is included, and accepts no new pods: {node.closed}"
            for node in self.nodes
            if node.closed and not node.devices.problem
        )

    @property
    def cordoned(self) -> tuple[str, ...]:
        """Messages about cordoned nodes, whose free memory is not allocated."""
        return tuple(
            f"node {node.name} is cordoned: no new pods are placed there until `kubectl uncordon {node.name}`; running pods stay"
            for node in self.nodes
            if node.cordoned
        )


def usage_of(
    nodes: Iterable[Node], pods: Iterable[Pod], claims: Iterable[ResourceClaim] = (), *, whole: bool = False
) -> ClusterUsage:
    """Allocations on the nodes that have ``aliyun.com/gpu-mem``, or share their GPUs through ``claims``.

    A node without it (its mode was switched, or its agent is gone) is included while pods hold memory of GPUs that its annotation still
    describes; with ``whole``, also while they hold only whole GPUs. Nodes and pods that cannot be parsed are left out and named in
    ``warnings``.
    """
    by_node: dict[str, list[Pod]] = {}
    for pod in pods:
        if pod.spec.node_name and not pod.finished:
            by_node.setdefault(pod.spec.node_name, []).append(pod)
    claims = list(claims)
    warnings: list[str] = []
    shown: list[NodeUsage] = []
    for node in nodes:
        try:
            usage = _node_usage(node, by_node.get(node.metadata.name, ()), claims, warnings, whole=whole)
        except ModelError as error:
            warnings.append(f"{error}; the node is left out")
            continue
        if usage is not None:
            shown.append(usage)
        elif fault := driver_fault(node):
            warnings.append(f"node {node.metadata.name}: {fault}")
    return ClusterUsage(tuple(shown), tuple(warnings))


def _out_of_service_reason(device: Device) -> str:
    if device.healthy:
        return f"out of service: cordoned (annotation {names.ANN_CORDONED}); running pods stay"
    return f"out of service: {device.reason or 'no reason given'}" if device.is_faulty else device.reason


def percent(used: int, total: int) -> int:
    """``used`` of ``total`` in percent, rounded down; 0 of 0 is 0."""
    return used * 100 // total if total else 0


def _node_usage(
    node: Node, pods: Sequence[Pod], claims: Sequence[ResourceClaim], warnings: list[str], *, whole: bool
) -> NodeUsage | None:
    advertised = _advertised(node, names.GPU_MEM)
    described = names.ANN_DEVICES in (node.metadata.annotations or {})
    # A mistyped mode label would silently remove the node from the table: ``mode_of`` raises ``ModelError`` for it.
    if not advertised and not (described and (pods or mode_of(node).claims)):
        mode_of(node)
        return None
    devices = node_devices(node) if described else node_devices(node, unit=_unit_of_foreign(node, advertised))
    if devices is None or not devices.devices:
        return None
    if devices.problem:
        warnings.append(f"node {devices.name}: {devices.problem}; until then no new pods are placed there")
    idle_warning = idle_cordons(node, devices.devices)
    if idle_warning:
        warnings.append(f"node {devices.name}: {idle_warning}")
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
    if devices.mode.claims:
        usages += _claim_usages(claims, devices.name, gpus, warnings)
    elif not advertised and not shared:
        return None
    waiting = [usage for usage in usages if not usage.shares]
    has_core = (
        devices.mode.gives_core
        or devices.mode.claims
        or _advertised(node, names.GPU_CORE) > 0
        or any(
            share.core_percent for usage in usages for share in usage.shares
        )  # allocated before the mode was switched
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
        units, in_node_unit = share.units, share.device_units == self.total_units
        if in_node_unit:
            self.units += units
        else:
            units = self._converted(share.mib)
            self.converted_mib += share.mib
        self.mib += share.mib
        self.core_percent += share.core_percent
        return PodShare(self.device, units, share.mib, share.core_percent, in_node_unit, containers)

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
        return None  # as the scheduler does: annotations of a pod without a request are ignored
    allocation = read_allocation(meta.annotations or {}, devices, subject)
    if allocation is not None:
        shares = _shares(allocation, devices, gpu_of, subject)
        if names.ANN_GPU_MEMORY_LIMIT in (meta.annotations or {}) and devices.mode.may_burst:
            from gpushare.inspect.views.burst import with_limits

            shares = with_limits(shares, pod, allocation)
        selection = bound_selection(meta.annotations)
        return PodUsage(meta.namespace, meta.name, meta.uid, pod.status.phase, shares, selection=selection)
    request = request_of(pod)
    if request is None or request.by_gpu:
        return None
    waiting = (request.memory_units * request.gpu_count, request.core_percent * request.gpu_count)
    return PodUsage(meta.namespace, meta.name, meta.uid, pod.status.phase, (), *waiting)


def _claim_usages(
    claims: Iterable[ResourceClaim], node: str, gpus: Iterable[_Gpu], warnings: list[str]
) -> Iterator[PodUsage]:
    by_uuid = {gpu.device.uuid: gpu for gpu in gpus}
    devices = [gpu.device for gpu in by_uuid.values()]
    for claim in claims:
        holding = holding_of(claim, node, devices)
        warnings += holding.problems
        if holding.shares:
            metadata = claim.metadata
            users = claim.pods
            # In MiB: where a node's unit is larger, the table rounds up.
            shares = tuple(by_uuid[share.uuid].add(share, None) for share in holding.shares)
            yield PodUsage(
                metadata.namespace,
                ", ".join(users) or "-",
                metadata.uid,
                "",
                shares,
                claim=metadata.name,
                users=users,
            )


def _counts_gpus(pod: Pod) -> bool:
    """Whether the pod requests whole GPUs by count, and so no GPU memory."""
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
                f"holds {share.mib} MiB of GPU {share.label} ({share.uuid}), which node {devices.name} no longer has",
            )
        placed.append((gpu, share, containers[number] if containers else None))
    if len(placed) > 1:
        placed.sort(key=lambda item: item[0].device.index)
    return tuple([gpu.add(share, gpu_containers) for gpu, share, gpu_containers in placed])


def _advertised(node: Node, resource: str) -> int:
    """The node's amount of ``resource``: the larger of capacity and allocatable."""
    amount = 0
    for amounts in (node.status.capacity, node.status.allocatable):
        if amounts and resource in amounts:
            try:
                amount = max(amount, parse_amount(amounts[resource], f"{resource} in its status"))
            except InvalidQuantity as error:
                raise ModelError(f"node {node.metadata.name}", str(error)) from None
    return amount


def _unit_of_foreign(node: Node, advertised: int) -> MemoryUnit:
    """The unit of a node of another agent, derived from the GPU size in its label.

    GiB, the documented default, if there is no such label or it matches neither unit.
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
