"""A node's GPUs, mode and memory unit, and the annotation that records them."""

import re
from collections.abc import Collection, Mapping
from enum import Enum
from typing import Final, NamedTuple, TypeVar

import msgspec

from gpushare.api import names
from gpushare.api.errors import InvalidQuantity, MalformedDevices
from gpushare.api.node.modes import MODES, NodeMode
from gpushare.api.node.shared_event_texts import NO_WORKING_GPU
from gpushare.api.node.topology import TopologyLevels, triangle, untriangle
from gpushare.api.objects import Node
from gpushare.api.quantity import MemoryUnit, parse_amount
from gpushare.api.request.pluralize import counted

#: Maximum number of pods per GPU with isolation (spec §1, ``max-pod``).
ISOLATED_POD_CAP: Final = 16

#: More GPUs than any node has; a description with more is a mistake.
MAX_DEVICES: Final = 128
_MAX_MIB: Final = 1 << 30
#: NVIDIA's GPU architectures, as GPU feature discovery writes them in the node label ``nvidia.com/gpu.family``.
ARCHITECTURES: Final = (
    "kepler",
    "maxwell",
    "pascal",
    "volta",
    "turing",
    "ampere",
    "ada-lovelace",
    "hopper",
    "blackwell",
    "rubin",
)
#: Indices below are whole GPUs'; each GPU has seven from here on for its MIG instances, by the memory slice at which they begin.
_FIRST_INSTANCE: Final = 16
_INSTANCES_PER_GPU: Final = 7
#: How users name a GPU: by index, UUID, or the substitute for a UUID (``index_uuid``).
_CORDONED: Final = re.compile(r"0|[1-9][0-9]{0,2}|(GPU|MIG)-[0-9A-Za-z-]+|[^/]+/[0-9]+", re.ASCII)
_T = TypeVar("_T")


class Placement(Enum):
    """Which GPU of a node is filled first: the value of the node label ``ack.node.gpu.placement``."""

    BINPACK = "binpack"
    SPREAD = "spread"
    FRAGMENTATION = "fragmentation"


_PLACEMENTS: Final = {placement.value: placement for placement in Placement}


class Device(msgspec.Struct, frozen=True, omit_defaults=True):
    """One GPU, or MIG instance, as NVML describes it. ``total_mib`` is the memory that NVML calls total.

    An instance is a GPU of its own, with an index of its own (``instance_index``); a GPU in MIG mode is none.
    """

    index: int
    uuid: str
    total_mib: int = msgspec.field(name="mib")
    model: str = ""
    healthy: bool = True
    reason: str = ""
    """Why it is not healthy, as text."""
    pci_bus_id: str = msgspec.field(name="pci", default="")
    numa_node: int = msgspec.field(name="numa", default=-1)
    foreign_mib: int = msgspec.field(name="foreign", default=0)
    """MiB used without an allocation of ours; not allocated to pods."""
    foreign_by: str = msgspec.field(name="foreignBy", default="")
    """What uses them, as text; agents of earlier versions do not say."""
    context_mib: int = msgspec.field(name="context", default=0)
    """Measured MiB of a CUDA context in a container with isolation; 0: not measured yet."""
    cordoned: bool = False
    """Whether users excluded it from new allocations; read from ``gpushare.dev/cordoned-gpus``, not from the agent's description."""
    kept_back: bool = msgspec.field(name="kept", default=False)
    """Whether it works, but is not allocated until pods have ended that hold it from before a change of the node's mode
    (``reason`` names one). ``healthy`` is then false, too, for readers of earlier versions."""
    architecture: str = msgspec.field(name="arch", default="")
    """One of ``ARCHITECTURES``; empty if unknown."""
    claim_device: str = msgspec.field(name="claimDevice", default="")
    """The name in ResourceSlices of a MIG instance that was created for claims; empty: that of its UUID."""

    @property
    def offered_as(self) -> str:
        """Its name in ResourceSlices, and in what is allocated to claims."""
        return self.claim_device or self.uuid.lower()

    @property
    def foreign_text(self) -> str:
        """What is used without an allocation, and by what; empty if nothing is."""
        if not self.foreign_mib:
            return ""
        users = f" by {self.foreign_by}" if self.foreign_by else ""
        return f"{self.foreign_mib} MiB of GPU {self.label} are used without an allocation{users}"

    @property
    def is_instance(self) -> bool:
        """Whether it is a MIG instance."""
        return is_instance(self.uuid)

    @property
    def place(self) -> tuple[int, ...]:
        """NVML's index; of an instance that of its GPU, and the memory slice where it begins. Sorts instances behind their GPU."""
        return _place(self.index, instance=self.is_instance)

    @property
    def label(self) -> str:
        """What tables, metrics and messages call it: ``0``, or ``0/4`` for the instance that begins at memory slice 4 of GPU 0."""
        return gpu_label(self.index, instance=self.is_instance)

    @property
    def is_faulty(self) -> bool:
        """Whether it is faulty."""
        return not self.healthy and not self.kept_back

    @property
    def in_service(self) -> bool:
        """Whether it takes new allocations."""
        return self.healthy and not self.cordoned


def is_instance(uuid: str) -> bool:
    """Whether the GPU with that UUID is a MIG instance."""
    return uuid.startswith("MIG-")


def gpu_label(index: int, *, instance: bool) -> str:
    """``Device.label`` of the GPU, or MIG instance, with that index."""
    return "/".join(map(str, _place(index, instance=instance)))


def _place(index: int, *, instance: bool) -> tuple[int, ...]:
    if not instance or index < _FIRST_INSTANCE:
        return (index,)
    return divmod(index - _FIRST_INSTANCE, _INSTANCES_PER_GPU)


def instance_index(gpu: int, start: int) -> int | None:
    """The index of the MIG instance that begins at a memory slice of the GPU with NVML's index ``gpu``; ``None``: there is none left for it.

    It stays the same whatever other instances come and go.
    """
    if not (0 <= gpu < _FIRST_INSTANCE and 0 <= start < _INSTANCES_PER_GPU):
        return None
    return _FIRST_INSTANCE + _INSTANCES_PER_GPU * gpu + start


def index_uuid(node: str, index: int) -> str:
    """A substitute for the UUID of a GPU of ``node`` whose index only is known; real UUIDs have no slash."""
    return f"{node}/{index}"


class NodeDevices(msgspec.Struct, frozen=True):
    """A node as the ledger sees it.

    ``devices`` are ordered by index. ``max_pods`` caps the pods on each GPU, ``max_node_pods`` those on the node (``None``: no cap).
    ``refusal``: why the node takes no new pods at present, else empty. ``problem``: what is wrong with the node's labels.
    """

    name: str
    mode: NodeMode
    unit: MemoryUnit
    devices: tuple[Device, ...]
    placement: Placement = Placement.BINPACK
    max_pods: int | None = None
    refusal: str = ""
    problem: str = ""
    max_node_pods: int | None = None
    near: TopologyLevels = ()
    """Nearness of each pair of ``devices`` (``gpushare.api.node.topology``)."""
    isolation: str = ""
    """What enforces shares, as the node agent reports it; empty if it does not."""

    def units_of(self, device: Device) -> int:
        """Number of units of ``device``, in this node's unit."""
        return self.unit.count_in(device.total_mib)

    @property
    def total_units(self) -> int:
        """The node's ``aliyun.com/gpu-mem`` capacity."""
        return sum(self.units_of(device) for device in self.devices)

    def device_at(self, index: int) -> Device | None:
        """The GPU with NVML's ``index``, if the node has it."""
        return next((device for device in self.devices if device.index == index), None)

    def gpu_names(self, uuids: Collection[str]) -> str:
        """GPUs for people, by their present label: ``GPU 0`` or ``GPU 0 and GPU 1``; those that the node does not have by UUID.

        The index in a record may be that of an earlier order.
        """
        known = [device for device in self.devices if device.uuid in uuids]
        unknown = sorted(set(uuids) - {device.uuid for device in known})
        return " and ".join(
            [*(f"GPU {device.label}" for device in known), *(f"GPU {uuid}" for uuid in unknown)]
        )

    def device_of(self, uuid: str, index: int) -> Device | None:
        """The GPU of a record with ``uuid`` and ``index``, if the node has it.

        The UUID decides. The index is used only if the record or the node has no UUIDs, as with a node that is read from its capacity
        because it has another agent or no description.
        """
        device = next((device for device in self.devices if device.uuid == uuid), None)
        if device is not None:
            return device
        device = self.device_at(index)
        if device is None or index_uuid(self.name, index) not in (uuid, device.uuid):
            return None
        return device


class _Annotation(msgspec.Struct, frozen=True, omit_defaults=True):
    """The value of the annotation ``gpushare.dev/devices``.

    ``near``: for each of ``gpus``, its nearness to those before it. Earlier versions ignore it.
    """

    version: int
    unit: str
    mode: str
    gpus: tuple[Device, ...]
    near: TopologyLevels = ()


_DESCRIBED = msgspec.json.Decoder(_Annotation)
_VERSION: Final = 1


def devices_annotation(
    mode: NodeMode, unit: MemoryUnit, devices: tuple[Device, ...], near: TopologyLevels = ()
) -> str:
    """The value of ``gpushare.dev/devices`` that describes these GPUs (JSON, version 1)."""
    return msgspec.json.encode(
        _Annotation(_VERSION, unit.setting, mode.value, devices, triangle(near))
    ).decode()


def mode_of(node: Node) -> NodeMode:
    """The mode of the node's label; raises ``MalformedDevices`` for an unknown value."""
    return _label(node, names.LABEL_MODE, MODES, NodeMode.DEFAULT)


class Described(NamedTuple):
    """A node agent's description of its node; ``near`` is in the order of ``devices``."""

    mode: NodeMode
    unit: MemoryUnit
    devices: tuple[Device, ...]
    near: TopologyLevels


def described_devices(node: Node) -> tuple[NodeMode, MemoryUnit, tuple[Device, ...]] | None:
    """As ``description_of``, without nearness."""
    description = description_of(node)
    return None if description is None else description[:3]


def description_of(node: Node) -> Described | None:
    """The node agent's description of ``node``, or ``None`` without one.

    Raises ``MalformedDevices`` if the annotation is malformed.
    """
    text = (node.metadata.annotations or {}).get(names.ANN_DEVICES)
    if text is None:
        return None
    subject = f"node {node.metadata.name}"
    try:
        described = _DESCRIBED.decode(text)
        unit = MemoryUnit.parse(described.unit)
        if described.mode not in MODES:
            raise ValueError(f"Invalid enum value '{described.mode}' - at `$.mode`")
    except (ValueError, RecursionError) as error:
        raise MalformedDevices(
            subject,
            f"annotation {names.ANN_DEVICES} cannot be read ({error}); a running node agent rewrites it within seconds: check its pod",
        ) from None
    if described.version != _VERSION:
        raise MalformedDevices(
            subject,
            f"annotation {names.ANN_DEVICES} has version {described.version}, this program reads {_VERSION}; "
            "node agents and scheduler must be of the same release",
        )
    order = tuple(sorted(range(len(described.gpus)), key=lambda position: described.gpus[position].index))
    devices = tuple(described.gpus[position] for position in order)
    _check_devices(devices, subject)
    try:
        near = untriangle(described.near, order)
    except ValueError as error:
        raise MalformedDevices(
            subject,
            f"annotation {names.ANN_DEVICES}: {error}; a running node agent rewrites it within seconds: check its pod",
        ) from None
    return Described(MODES[described.mode], unit, devices, near)


def node_devices(
    node: Node,
    *,
    isolated_cap: int = ISOLATED_POD_CAP,
    unit: MemoryUnit = MemoryUnit.GIB,
    placement: Placement = Placement.BINPACK,
) -> NodeDevices | None:
    """The node as the ledger sees it, or ``None`` if it has no GPUs for gpushare.

    The node agent's annotation is used if there is one. With another agent (capacity, but no annotation) the capacity is divided evenly
    over ``aliyun.com/gpu-count`` GPUs in ``unit``, as that agent's readers do. If label and annotation have different modes, the node is
    switching and takes no new pods until they agree. ``placement`` is the default for nodes without its label. A malformed label also
    prevents new pods (``problem``), but GPUs and allocations stay known. Raises ``MalformedDevices`` for a malformed description or
    capacity.
    """
    name = node.metadata.name
    labels = _Labels.of(node, placement)
    labelled = labels.mode
    described = description_of(node)
    refusal = labels.problem
    near: TopologyLevels = ()
    if described is not None:
        mode, unit, devices, near = described
        refusal = refusal or driver_fault(node)
        if mode is not labelled and not refusal:
            refusal = f"node is switching from {mode.value} to {labelled.value}"
    else:
        devices = _foreign_devices(node, unit)
        mode = labelled if labelled is not NodeMode.DEFAULT else NodeMode.SHARE
        if not devices:
            refusal = refusal or driver_fault(node)
            if not labelled.shares_memory and not refusal:
                return None
            refusal = (
                refusal or f"node is labelled {names.LABEL_MODE}={labelled.value} but reports no GPU yet"
            )
    if not devices and not refusal:
        if not mode.shares_memory:
            return None
        refusal = f"node is labelled {names.LABEL_MODE}={mode.value} but has no GPU"
    cap = isolated_cap if mode.isolated else None
    return NodeDevices(
        name=name,
        mode=mode,
        unit=unit,
        devices=tuple(_with_cordon(device, labels.cordoned) for device in devices),
        placement=labels.placement,
        max_pods=min(filter(None, (cap, labels.max_pods)), default=None),
        refusal=refusal,
        problem=labels.problem,
        max_node_pods=labels.max_node_pods,
        near=near,
        isolation=(node.metadata.annotations or {}).get(names.ANN_ISOLATION, ""),
    )


def driver_fault(node: Node) -> str:
    """Why no GPU of ``node`` works, as its node agent reports in the condition ``GPUShareReady``; empty if one may."""
    ready = node.condition(names.CONDITION_READY)
    if ready is None or ready.status != "False" or ready.reason not in NO_WORKING_GPU:
        return ""
    return f"node has no working GPU ({ready.message})"


def idle_cordons(node: Node, devices: tuple[Device, ...]) -> str:
    """A message about cordons of GPUs that the node does not have; malformed entries are ignored."""
    text = (node.metadata.annotations or {}).get(names.ANN_CORDONED, "")
    named = {name for name in map(str.strip, text.split(",")) if _CORDONED.fullmatch(name)}
    unknown = sorted(named - {str(device.index) for device in devices} - {device.uuid for device in devices})
    if not unknown or not devices:
        return ""
    existing = ", ".join(str(device.index) for device in devices[:16])
    return (
        f"annotation {names.ANN_CORDONED} names GPU {unknown[0]}, which the node does not have, so nothing is cordoned; "
        f"existing GPUs: {existing}"
    )


def with_cordons(devices: NodeDevices, node: Node) -> NodeDevices:
    """``devices`` with the cordons annotated on ``node``."""
    cordoned = _Labels.of(node, Placement.BINPACK).cordoned
    changed = tuple(_with_cordon(device, cordoned) for device in devices.devices)
    return devices if changed == devices.devices else msgspec.structs.replace(devices, devices=changed)


def label_problems(node: Node) -> tuple[str, ...]:
    """Problems with the node's labels and with its annotation of cordons."""
    return _Labels.of(node, Placement.BINPACK).problems


class _Labels(msgspec.Struct, frozen=True):
    """A node's labels, and its annotation of cordons; malformed ones count as absent and are listed in ``problems``."""

    mode: NodeMode
    placement: Placement
    max_pods: int | None
    max_node_pods: int | None
    cordoned: frozenset[str]
    problems: tuple[str, ...]

    @property
    def problem(self) -> str:
        """All problems as one text."""
        return "; ".join(self.problems)

    @classmethod
    def of(cls, node: Node, unlabelled: Placement) -> "_Labels":
        problems: list[str] = []

        def read(label: str, values: Mapping[str, _T], default: _T) -> _T:
            try:
                return _label(node, label, values, default)
            except MalformedDevices as error:
                problems.append(error.problem)
                return default

        mode = read(names.LABEL_MODE, MODES, NodeMode.DEFAULT)
        placement = read(names.LABEL_PLACEMENT, _PLACEMENTS, unlabelled)

        def cap(label: str) -> int | None:
            text = (node.metadata.labels or {}).get(label)
            if text is None:
                return None
            if text.isascii() and text.isdecimal() and len(text) <= 9 and int(text) > 0:
                return int(text)
            problems.append(f"label {label}={text} is not a number from 1; correct or remove it")
            return None

        max_pods, max_node_pods = cap(names.LABEL_MAX_PODS), cap(names.LABEL_MAX_NODE_PODS)
        text = (node.metadata.annotations or {}).get(names.ANN_CORDONED, "")
        cordoned = frozenset(filter(None, (name.strip() for name in text.split(","))))
        malformed = sorted(name for name in cordoned if not _CORDONED.fullmatch(name))
        if malformed:
            problems.append(
                f"annotation {names.ANN_CORDONED} names no GPU with {malformed[0][:80]!r}: write indices or UUIDs, with commas"
            )
        return cls(mode, placement, max_pods, max_node_pods, cordoned, tuple(problems))


def _with_cordon(device: Device, cordoned: frozenset[str]) -> Device:
    is_cordoned = device.uuid in cordoned or str(device.index) in cordoned
    return device if is_cordoned is device.cordoned else msgspec.structs.replace(device, cordoned=is_cordoned)


def _check_devices(devices: tuple[Device, ...], subject: str) -> None:
    if len(devices) > MAX_DEVICES:
        raise MalformedDevices(
            subject, f"{len(devices)} GPUs are more than the {MAX_DEVICES} a node can have"
        )
    if len({device.index for device in devices}) < len(devices) or len({d.uuid for d in devices}) < len(
        devices
    ):
        raise MalformedDevices(
            subject, f"annotation {names.ANN_DEVICES} lists a GPU twice (same index or UUID)"
        )
    for device in devices:
        if (
            not 0 <= device.index < MAX_DEVICES
            or not 0 < device.total_mib < _MAX_MIB
            or not 0 <= device.foreign_mib < _MAX_MIB
            or not 0 <= device.context_mib < _MAX_MIB
            or not device.uuid
        ):
            raise MalformedDevices(
                subject,
                f"annotation {names.ANN_DEVICES}: GPU {device.index} has no UUID or a size out of range",
            )


def _foreign_devices(node: Node, unit: MemoryUnit) -> tuple[Device, ...]:
    capacity = node.status.capacity or {}
    subject = f"node {node.metadata.name}"
    try:
        total_units = parse_amount(capacity.get(names.GPU_MEM, 0), f"{names.GPU_MEM} in its capacity")
        count = parse_amount(capacity.get(names.GPU_COUNT, 0), f"{names.GPU_COUNT} in its capacity")
    except InvalidQuantity as error:
        raise MalformedDevices(subject, str(error)) from None
    if not total_units or not count:
        return ()
    if count > MAX_DEVICES or total_units // count * unit.mib >= _MAX_MIB:
        raise MalformedDevices(
            subject, f"capacity of {counted(count, 'GPU')} with {counted(total_units, 'unit')} cannot be true"
        )
    size_mib = total_units // count * unit.mib
    return tuple(
        Device(index, index_uuid(node.metadata.name, index), size_mib) for index in range(count) if size_mib
    )


def _label(node: Node, label: str, values: Mapping[str, _T], default: _T) -> _T:
    text = (node.metadata.labels or {}).get(label)
    if text is None:
        return default
    if text not in values:
        raise MalformedDevices(
            f"node {node.metadata.name}", f"label {label}={text} is unknown; use one of {', '.join(values)}"
        )
    return values[text]
