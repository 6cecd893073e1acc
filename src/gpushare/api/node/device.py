"""What a node has: its GPUs, its mode, its memory unit, and how they are written on the node."""

import re
from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple, TypeVar

import msgspec

from gpushare.api import names
from gpushare.api.errors import InvalidQuantity, MalformedDevices
from gpushare.api.node.modes import MODES, NodeMode
from gpushare.api.node.topology import TopologyLevels, triangle, untriangle
from gpushare.api.objects import Node
from gpushare.api.quantity import MemoryUnit, parse_amount
from gpushare.api.request.pluralize import counted

#: Pods per GPU that an isolation layer holds at most (spec §1, ``max-pod``).
ISOLATED_POD_CAP: Final = 16

#: More GPUs than any node has; a description with more is a mistake.
MAX_DEVICES: Final = 128
_MAX_MIB: Final = 1 << 30
#: How people name a GPU: by its index, by its UUID, or by what stands for that (``index_uuid``).
_CORDONED: Final = re.compile(r"0|[1-9][0-9]{0,2}|(GPU|MIG)-[0-9A-Za-z-]+|[^/]+/[0-9]+", re.ASCII)
_T = TypeVar("_T")


class Placement(Enum):
    """Which GPU of a node is filled first: the value of the node label ``ack.node.gpu.placement``."""

    BINPACK = "binpack"
    SPREAD = "spread"
    FRAGMENTATION = "fragmentation"


_PLACEMENTS: Final = {one.value: one for one in Placement}


class Device(msgspec.Struct, frozen=True, omit_defaults=True):
    """One GPU as NVML describes it. ``total_mib`` is the memory that NVML calls total."""

    index: int
    uuid: str
    total_mib: int = msgspec.field(name="mib")
    model: str = ""
    healthy: bool = True
    reason: str = ""
    """Why it is not healthy, for people."""
    pci_bus_id: str = msgspec.field(name="pci", default="")
    numa_node: int = msgspec.field(name="numa", default=-1)
    foreign_mib: int = msgspec.field(name="foreign", default=0)
    """Memory that processes hold to which no scheduler of ours gave it: kept out of what is given away."""
    context_mib: int = msgspec.field(name="context", default=0)
    """What a CUDA context was measured to take of it in a container that is held to its share; 0: not known yet."""
    cordoned: bool = False
    """Whether people want nothing new on it; never described by an agent, but read from ``gpushare.dev/cordoned-gpus``."""
    kept_back: bool = msgspec.field(name="kept", default=False)
    """Whether it is well all the same, and given to nobody until pods end that hold it from before the node's mode changed
    (``reason`` names one). ``healthy`` is false beside it, as readers of before know only that."""

    @property
    def ails(self) -> bool:
        """Whether something is wrong with it."""
        return not self.healthy and not self.kept_back

    @property
    def in_service(self) -> bool:
        """Whether anything new may be put on it."""
        return self.healthy and not self.cordoned


def index_uuid(node: str, index: int) -> str:
    """What stands for the UUID of a GPU of ``node`` of which only the index is known; no real one has a slash."""
    return f"{node}/{index}"


class NodeDevices(msgspec.Struct, frozen=True):
    """A node as the ledger sees it.

    ``devices`` are ordered by index; ``max_pods`` caps the pods on each GPU, ``max_node_pods`` those on all of them
    (``None``: no cap); ``refusal`` is a reason why nothing new may be placed here at present, empty when there is none;
    ``problem`` is what is wrong with the node's labels, which somebody has to correct.
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
    """How near each two of ``devices`` are to each other (``gpushare.api.node.topology``)."""
    isolation: str = ""
    """What holds containers to their share, as the node agent says it; empty where none does."""

    def units_of(self, device: Device) -> int:
        """How many units ``device`` has in this node's unit."""
        return self.unit.count_in(device.total_mib)

    @property
    def total_units(self) -> int:
        """The node's ``aliyun.com/gpu-mem`` capacity."""
        return sum(self.units_of(device) for device in self.devices)

    def device_at(self, index: int) -> Device | None:
        """The GPU that NVML numbers ``index``, if the node has it."""
        return next((device for device in self.devices if device.index == index), None)

    def device_of(self, uuid: str, index: int) -> Device | None:
        """The GPU that a record means by ``uuid`` and ``index``, if the node has it.

        The UUID decides. Only where the record or the node knows none (a node that is read from its
        capacity: another agent's, or one whose description is missing) the index does.
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

    ``near`` tells for each of ``gpus`` how near it is to those before it. Readers of before pass over it.
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
    """The mode that the node's label asks for; raises ``MalformedDevices`` on an unknown value."""
    return _label(node, names.LABEL_MODE, MODES, NodeMode.DEFAULT)


class Described(NamedTuple):
    """What a node agent says of its node; ``near`` is in the order of ``devices``."""

    mode: NodeMode
    unit: MemoryUnit
    devices: tuple[Device, ...]
    near: TopologyLevels


def described_devices(node: Node) -> tuple[NodeMode, MemoryUnit, tuple[Device, ...]] | None:
    """As ``description_of``, without how near the GPUs are to each other."""
    found = description_of(node)
    return None if found is None else found[:3]


def description_of(node: Node) -> Described | None:
    """What the node agent wrote on ``node``, or ``None`` when it wrote nothing.

    Raises ``MalformedDevices`` when the annotation cannot be understood.
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
            f"annotation {names.ANN_DEVICES} cannot be read ({error}); a node agent that runs there writes it again within seconds: look at its pod",
        ) from None
    if described.version != _VERSION:
        raise MalformedDevices(
            subject,
            f"annotation {names.ANN_DEVICES} has version {described.version}, this program reads {_VERSION}; "
            "run node agents and scheduler of one release",
        )
    order = tuple(sorted(range(len(described.gpus)), key=lambda at: described.gpus[at].index))
    devices = tuple(described.gpus[at] for at in order)
    _check_devices(devices, subject)
    try:
        near = untriangle(described.near, order)
    except ValueError as error:
        raise MalformedDevices(
            subject,
            f"annotation {names.ANN_DEVICES}: {error}; a node agent that runs there writes it again within seconds: look at its pod",
        ) from None
    return Described(MODES[described.mode], unit, devices, near)


def node_devices(
    node: Node,
    *,
    isolated_cap: int = ISOLATED_POD_CAP,
    unit: MemoryUnit = MemoryUnit.GIB,
    placement: Placement = Placement.BINPACK,
) -> NodeDevices | None:
    """The node as the ledger sees it, or ``None`` when it has no GPU of ours.

    The node agent's annotation is read where there is one. Where another agent runs (capacity, but no
    annotation) the capacity is divided evenly over ``aliyun.com/gpu-count`` GPUs in ``unit``, as its
    readers do. A label and an annotation of different modes mean that the node is switching: it takes
    nothing new until they agree. ``placement`` is that of nodes without a label for it. A label that cannot be understood keeps new pods away too (``problem``),
    but what the node has and what its pods hold stays known. Raises ``MalformedDevices`` for a description,
    or a capacity, that cannot be understood.
    """
    name = node.metadata.name
    labels = _Labels.of(node, placement)
    labelled = labels.mode
    described = description_of(node)
    refusal = labels.problem
    near: TopologyLevels = ()
    if described is not None:
        mode, unit, devices, near = described
        if mode is not labelled and not refusal:
            refusal = f"node is switching from {mode.value} to {labelled.value}"
    else:
        devices = _foreign_devices(node, unit)
        mode = labelled if labelled is not NodeMode.DEFAULT else NodeMode.SHARE
        if not devices:
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


def idle_cordons(node: Node, devices: tuple[Device, ...]) -> str:
    """What is to be said of cordons that name GPUs which the node does not have, as far as they can be understood."""
    text = (node.metadata.annotations or {}).get(names.ANN_CORDONED, "")
    named = {one for one in map(str.strip, text.split(",")) if _CORDONED.fullmatch(one)}
    idle = sorted(named - {str(one.index) for one in devices} - {one.uuid for one in devices})
    if not idle or not devices:
        return ""
    there = ", ".join(str(one.index) for one in devices[:16])
    return (
        f"annotation {names.ANN_CORDONED} names GPU {idle[0]}, which the node does not have: nothing is cordoned by that; "
        f"it has GPU {there}"
    )


def with_cordons(devices: NodeDevices, node: Node) -> NodeDevices:
    """``devices`` with the cordons that people have written on ``node``."""
    cordoned = _Labels.of(node, Placement.BINPACK).cordoned
    found = tuple(_with_cordon(device, cordoned) for device in devices.devices)
    return devices if found == devices.devices else msgspec.structs.replace(devices, devices=found)


def label_problems(node: Node) -> tuple[str, ...]:
    """What is wrong with the node's labels of ours, and with the annotation that people set, one by one."""
    return _Labels.of(node, Placement.BINPACK).problems


class _Labels(msgspec.Struct, frozen=True):
    """A node's labels of ours, and the annotation that people set; what cannot be understood counts as absent and is among
    the ``problems``."""

    mode: NodeMode
    placement: Placement
    max_pods: int | None
    max_node_pods: int | None
    cordoned: frozenset[str]
    problems: tuple[str, ...]

    @property
    def problem(self) -> str:
        """All of them as one text."""
        return "; ".join(self.problems)

    @classmethod
    def of(cls, node: Node, unlabelled: Placement) -> "_Labels":
        problems: list[str] = []

        def read(label: str, values: Mapping[str, _T], absent: _T) -> _T:
            try:
                return _label(node, label, values, absent)
            except MalformedDevices as error:
                problems.append(error.problem)
                return absent

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
        cordoned = frozenset(filter(None, (one.strip() for one in text.split(","))))
        wrong = sorted(one for one in cordoned if not _CORDONED.fullmatch(one))
        if wrong:
            problems.append(
                f"annotation {names.ANN_CORDONED} names no GPU with {wrong[0][:80]!r}: write indices or UUIDs, with commas"
            )
        return cls(mode, placement, max_pods, max_node_pods, cordoned, tuple(problems))


def _with_cordon(device: Device, cordoned: frozenset[str]) -> Device:
    wanted = device.uuid in cordoned or str(device.index) in cordoned
    return device if wanted is device.cordoned else msgspec.structs.replace(device, cordoned=wanted)


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


def _label(node: Node, label: str, values: Mapping[str, _T], absent: _T) -> _T:
    text = (node.metadata.labels or {}).get(label)
    if text is None:
        return absent
    if text not in values:
        raise MalformedDevices(
            f"node {node.metadata.name}", f"label {label}={text} is unknown; use one of {', '.join(values)}"
        )
    return values[text]
