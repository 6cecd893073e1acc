"""Our own CDI spec, derived from NVIDIA's. Pure.

NVIDIA's spec sets ``NVIDIA_VISIBLE_DEVICES=void`` in every container, so that its runtime does not do the work twice. A runtime
applies CDI edits last, so that value would hide the UUID that the documentation promises there. Our spec is the same without
that variable. It has one device per GPU, named after its UUID, whatever names NVIDIA uses. MIG instances that were created since
NVIDIA's spec was are added: what containers need of them are the device nodes of their GPU and of their two access rights.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gpushare.api import names
from gpushare.api.node.device import Device
from gpushare.nodeagent.runtime.cdi.read_spec import CdiDescription, CdiDevice

KIND: Final = "gpushare.dev/gpu"
#: The kinds under which NVIDIA's tools describe GPUs: ``nvidia-ctk cdi generate``, and NVIDIA's device plugin. The first is preferred.
SOURCES: Final = ("nvidia.com/gpu", "k8s.device-plugin.nvidia.com/gpu")

_ALL: Final = "all"
_NODE: Final = re.compile(r"/dev/nvidia(\d+)")
_CAPABILITY: Final = re.compile(r"/dev/nvidia-caps/nvidia-cap(\d+)")


@dataclass(frozen=True, slots=True)
class Derived:
    """``content`` of our file, ``covered``: the UUIDs of the GPUs in it, ``source``: the path of the file from which it is derived."""

    content: bytes
    source: str
    covered: frozenset[str] = field(default_factory=frozenset)


def qualified(uuid: str) -> str:
    """The CDI name of a GPU."""
    return f"{KIND}={uuid}"


def derived(
    descriptions: Sequence[CdiDescription],
    gpus: Sequence[Device],
    minors: Mapping[str, int],
    capabilities: Mapping[str, tuple[int, ...]] | None = None,
    capability_major: int | None = None,
) -> Derived | None:
    """The spec for ``gpus``, derived from the one that covers most of them; ``None`` if none covers any.

    ``descriptions`` are in order of precedence, highest first; ``minors`` has the number of each GPU's device node by UUID,
    ``capabilities`` those of the device nodes that give access to each MIG instance. With ``capability_major``, their major number,
    runtimes make these device nodes in containers, whether the host has them or not.
    """
    best: Derived | None = None
    for kind in SOURCES:
        for description in descriptions:
            if description.kind != kind:
                continue
            candidate = _from(description, gpus, minors, capabilities or {}, capability_major)
            if candidate.covered and (best is None or len(candidate.covered) > len(best.covered)):
                best = candidate
    return best


def _from(
    source: CdiDescription,
    gpus: Sequence[Device],
    minors: Mapping[str, int],
    capabilities: Mapping[str, tuple[int, ...]],
    capability_major: int | None,
) -> Derived:
    matched = {
        gpu.uuid: _instance_of(source, gpu, capabilities.get(gpu.uuid, ()))
        or _made(gpu, minors.get(gpu.uuid), capabilities.get(gpu.uuid, ()), capability_major)
        if gpu.is_instance
        else _device_of(source, gpu, minors.get(gpu.uuid), alone=len(gpus) == 1)
        for gpu in gpus
    }
    devices = [
        {"name": uuid, "containerEdits": _without_visible_devices(device.edits)}
        for uuid, device in sorted(matched.items())
        if device is not None
    ]
    content = {
        "cdiVersion": source.version,
        "kind": KIND,
        "containerEdits": _without_visible_devices(source.edits),
        "devices": devices,
    }
    text = json.dumps(content, indent=1, sort_keys=True) + "\n"
    return Derived(text.encode(), source.path, frozenset(str(one["name"]) for one in devices))


def _device_of(source: CdiDescription, gpu: Device, minor: int | None, *, alone: bool) -> CdiDevice | None:
    """The device that stands for this GPU: by UUID, else by index; never one with another GPU's device node.

    NVML's indices shift when a GPU is lost, and a spec may be older than that.
    """
    by_name = {device.name.casefold(): device for device in source.devices}
    uuid = by_name.get(gpu.uuid.casefold())
    if uuid is not None:
        return uuid if _matches(uuid, minor) else None
    for name in (str(gpu.index), f"gpu{gpu.index}"):
        if name in by_name and _matches(by_name[name], minor):
            return by_name[name]
    if minor is not None:
        numbered = [device for device in source.devices if device.name != _ALL and _nodes(device) == {minor}]
        if len(numbered) == 1:
            return numbered[0]
    everything = by_name.get(_ALL)
    if alone and everything is not None and len(source.devices) == 1 and _matches(everything, minor):
        return everything
    return None


def _instance_of(source: CdiDescription, gpu: Device, capabilities: tuple[int, ...]) -> CdiDevice | None:
    """The device that stands for this MIG instance: by UUID, else by the device nodes of its access rights."""
    for device in source.devices:
        if device.name.casefold() == gpu.uuid.casefold():
            return device
    same = [
        one for one in source.devices if one.name != _ALL and _numbers(one, _CAPABILITY) == set(capabilities)
    ]
    return same[0] if capabilities and same else None


def _made(
    gpu: Device, minor: int | None, capabilities: tuple[int, ...], major: int | None
) -> CdiDevice | None:
    """A MIG instance that NVIDIA's spec does not have; ``None`` if its device nodes are not known."""
    if minor is None or not capabilities:
        return None
    nodes: list[dict[str, Any]] = [{"path": f"/dev/nvidia{minor}"}]
    for number in capabilities:
        made = {} if major is None else {"type": "c", "major": major, "minor": number}
        nodes.append({"path": f"/dev/nvidia-caps/nvidia-cap{number}", **made})
    return CdiDevice(gpu.uuid, {"deviceNodes": nodes})


def _matches(device: CdiDevice, minor: int | None) -> bool:
    nodes = _nodes(device)
    return minor is None or not nodes or nodes == {minor}


def _nodes(device: CdiDevice) -> set[int]:
    """The numbers of the GPUs whose device nodes this device adds."""
    return _numbers(device, _NODE)


def _numbers(device: CdiDevice, name: re.Pattern[str]) -> set[int]:
    nodes = device.edits.get("deviceNodes") or ()
    paths = [str(node.get("hostPath") or node.get("path") or "") for node in nodes]
    return {int(match[1]) for path in paths if (match := name.fullmatch(path))}


def _without_visible_devices(edits: Mapping[str, Any]) -> dict[str, Any]:
    remaining = dict(edits)
    if "env" in remaining:
        remaining["env"] = [
            one for one in remaining["env"] or () if one.partition("=")[0] != names.ENV_VISIBLE_DEVICES
        ]
        if not remaining["env"]:
            del remaining["env"]
    return remaining
