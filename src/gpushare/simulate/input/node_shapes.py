"""Nodes to add: like an existing one, or of a described shape."""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from gpushare.api import names
from gpushare.api.errors import ModelError
from gpushare.api.json_objects import Json, annotations_of, labels_of, name_of, spec_of, status_of
from gpushare.api.node.device import Device, description_of, devices_annotation
from gpushare.api.node.modes import MODES, NodeMode
from gpushare.api.node.node_template import NodeTemplate
from gpushare.api.objects import decode_node
from gpushare.api.quantity import MemoryUnit, parse_quantity
from gpushare.simulate.errors import SimulateError
from gpushare.simulate.snapshot import ClusterState

HOSTNAME: Final = "kubernetes.io/hostname"
_OURS: Final = (names.GPU_MEM, names.GPU_CORE, names.GPU_COUNT, names.GPU_WHOLE)
_KEYS: Final = ("gpus", "memory", "mode", "unit", "cpu", "ram", "pods")
_LABEL: Final = "label."
#: What a node has if its shape does not say: enough to never matter.
_AMPLE: Final = {"cpu": "1024", "memory": "16Ti", "pods": "1100"}


class Shape(msgspec.Struct, frozen=True):
    """The properties of added nodes; ``node`` is one of them, except for its name and its GPUs' UUIDs."""

    text: str
    node: Json
    devices: tuple[Device, ...]
    mode: NodeMode
    unit: MemoryUnit
    near: Any = ()


def shape_of(text: str, state: ClusterState) -> Shape:
    """The shape that ``text`` describes: a node's name, or ``gpus=4,memory=16160,mode=share``. Raises ``SimulateError``."""
    if "=" in text:
        return _described(text)
    for node in state.nodes:
        if name_of(node) == text:
            return _like(node)
    raise SimulateError(
        f"--node-shape {text}",
        f"no node has that name; there are {', '.join(map(name_of, state.nodes[:10]))}; "
        "or describe one: gpus=4,memory=16160,mode=share",
    )


def shapes_there(state: ClusterState) -> list[Shape]:
    """The kinds of nodes with GPUs in the cluster: one for all that differ in name only, in order of names."""
    shapes: dict[bytes, Shape] = {}
    for node in sorted(state.nodes, key=name_of):
        try:
            shape = _like(node)
        except SimulateError:
            continue
        made = nodes_of(shape, 1)[0]
        key = msgspec.json.encode((made, [(device.total_mib, device.model) for device in shape.devices]))
        shapes.setdefault(key, shape)
    return list(shapes.values())


def nodes_of(shape: Shape, count: int) -> tuple[Json, ...]:
    """``count`` empty nodes of this shape with all GPUs in service, named ``added-1`` and so on."""
    return tuple(_made(shape, f"added-{number}") for number in range(1, count + 1))


def _made(shape: Shape, name: str) -> Json:
    devices = tuple(
        msgspec.structs.replace(
            device, uuid=f"{'MIG' if device.is_instance else 'GPU'}-{name}-{device.index}"
        )
        for device in shape.devices
    )
    node = shape.node
    labels = {**labels_of(node), HOSTNAME: name}
    annotations = {
        **annotations_of(node),
        names.ANN_DEVICES: devices_annotation(shape.mode, shape.unit, devices, shape.near),
    }
    return {**node, "metadata": {"name": name, "uid": name, "labels": labels, "annotations": annotations}}


def _like(node: Json) -> Shape:
    name = name_of(node)
    try:
        described = description_of(decode_node(node))
    except ModelError as error:
        raise SimulateError("", str(error)) from None
    if described is None:
        raise SimulateError(
            f"node {name}", f"no node agent has reported its GPUs (annotation {names.ANN_DEVICES})"
        )
    devices = tuple(
        msgspec.structs.replace(
            device,
            healthy=True,
            reason="",
            foreign_mib=0,
            context_mib=0,
            cordoned=False,
            kept_back=False,
            pci_bus_id="",
        )
        for device in described.devices
    )
    labels = {key: text for key, text in labels_of(node).items() if key != HOSTNAME}
    taints = [
        taint
        for taint in spec_of(node).get("taints") or ()
        if not str(taint.get("key")).startswith("node.kubernetes.io/")
    ]
    capacity = NodeTemplate(
        tuple(device.total_mib for device in devices), described.mode, described.unit
    ).capacity
    allocatable = {
        key: text for key, text in (status_of(node).get("allocatable") or {}).items() if key not in _OURS
    }
    like = {
        "kind": "Node",
        "metadata": {"labels": labels, "annotations": {}},
        "spec": {"taints": taints} if taints else {},
        "status": {"allocatable": allocatable | {key: str(amount) for key, amount in capacity.items()}},
    }
    return Shape(f"like {name}", like, devices, described.mode, described.unit, described.near)


def _described(text: str) -> Shape:
    subject = f"--node-shape {text}"
    fields: dict[str, str] = {}
    labels: dict[str, str] = {}
    for part in text.split(","):
        key, _, value = part.partition("=")
        if key.startswith(_LABEL):
            labels[key.removeprefix(_LABEL)] = value
        elif key in _KEYS and value:
            fields[key] = value
        else:
            raise SimulateError(
                subject, f"{part!r} is none of {', '.join(_KEYS)} and label.NAME, each =VALUE"
            )
    gpus, memory_mib = _number(fields, "gpus", subject, 128), _number(fields, "memory", subject, 1 << 30)
    try:
        label, unit = fields.get("mode", "share"), MemoryUnit.parse(fields.get("unit", "1GiB"), "unit")
        if label not in MODES:
            raise ValueError(f"mode {label} is none of {', '.join(MODES)}")
        amounts = {
            "cpu": fields.get("cpu", _AMPLE["cpu"]),
            "memory": fields.get("ram", _AMPLE["memory"]),
            "pods": fields.get("pods", _AMPLE["pods"]),
        }
        for amount in amounts.values():
            parse_quantity(amount, subject)
    except ValueError as error:
        raise SimulateError(subject, str(error)) from None
    mode = MODES[label]
    template = NodeTemplate((memory_mib,) * gpus, mode, unit)
    if not template.capacity and not mode.claims:
        raise SimulateError(subject, f"nodes in mode {mode.value} offer no GPUs to pods; name another mode")
    node: Json = {
        "kind": "Node",
        "metadata": {"labels": {**labels, **template.labels}, "annotations": {}},
        "spec": {},
        "status": {
            "allocatable": {**amounts, **{key: str(amount) for key, amount in template.capacity.items()}}
        },
    }
    devices = tuple(Device(index, "", memory_mib) for index in range(gpus))
    return Shape(text, node, devices, mode, unit)


def _number(fields: Mapping[str, str], key: str, subject: str, most: int) -> int:
    text = fields.get(key, "")
    if not re.fullmatch(r"[0-9]{1,10}", text, re.ASCII) or not 0 < int(text) <= most:
        raise SimulateError(subject, f"{key} is a number from 1 to {most}: gpus=4,memory=16160 (MiB of each)")
    return int(text)
