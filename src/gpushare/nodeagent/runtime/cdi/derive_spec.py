"""Our own CDI spec, derived from NVIDIA's. Pure.

NVIDIA's sets ``NVIDIA_VISIBLE_DEVICES=void`` in every container, so that its runtime does not do the work twice. A
runtime makes CDI's edits last, so that value would hide the UUID which the documentation promises there. Ours is
the same less that variable, has one device for each GPU, and names it by its UUID, whatever NVIDIA's names are.
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
#: Where NVIDIA's tools describe GPUs: ``nvidia-ctk cdi generate``, and NVIDIA's device plugin. First is best.
SOURCES: Final = ("nvidia.com/gpu", "k8s.device-plugin.nvidia.com/gpu")

_ALL: Final = "all"
_NODE: Final = re.compile(r"/dev/nvidia(\d+)")


@dataclass(frozen=True, slots=True)
class Derived:
    """``content`` of our file, ``covered``: the UUIDs of the GPUs in it, ``source``: the path of the file it is derived from."""

    content: bytes
    source: str
    covered: frozenset[str] = field(default_factory=frozenset)


def qualified(uuid: str) -> str:
    """The CDI name of a GPU."""
    return f"{KIND}={uuid}"


def derived(
    found: Sequence[CdiDescription], gpus: Sequence[Device], minors: Mapping[str, int]
) -> Derived | None:
    """What to write for ``gpus`` from the description that covers most of them; ``None`` when none covers any.

    ``found`` is in order of precedence, best first; ``minors`` has the number of each GPU's device node by UUID.
    """
    best: Derived | None = None
    for kind in SOURCES:
        for one in found:
            if one.kind != kind:
                continue
            made = _from(one, gpus, minors)
            if made.covered and (best is None or len(made.covered) > len(best.covered)):
                best = made
    return best


def _from(source: CdiDescription, gpus: Sequence[Device], minors: Mapping[str, int]) -> Derived:
    matched = {gpu.uuid: _device_of(source, gpu, minors.get(gpu.uuid), alone=len(gpus) == 1) for gpu in gpus}
    devices = [
        {"name": uuid, "containerEdits": _less_visible(device.edits)}
        for uuid, device in sorted(matched.items())
        if device is not None
    ]
    content = {
        "cdiVersion": source.version,
        "kind": KIND,
        "containerEdits": _less_visible(source.edits),
        "devices": devices,
    }
    text = json.dumps(content, indent=1, sort_keys=True) + "\n"
    return Derived(text.encode(), source.path, frozenset(str(one["name"]) for one in devices))


def _device_of(source: CdiDescription, gpu: Device, minor: int | None, *, alone: bool) -> CdiDevice | None:
    """The device that is this GPU: by UUID, else by index; never one with another GPU's device node.

    NVML's indices shift when a GPU is lost, and a description may be older than that.
    """
    by_name = {device.name.casefold(): device for device in source.devices}
    uuid = by_name.get(gpu.uuid.casefold())
    if uuid is not None:
        return uuid if _may_be(uuid, minor) else None
    for name in (str(gpu.index), f"gpu{gpu.index}"):
        if name in by_name and _may_be(by_name[name], minor):
            return by_name[name]
    if minor is not None:
        numbered = [one for one in source.devices if one.name != _ALL and _nodes(one) == {minor}]
        if len(numbered) == 1:
            return numbered[0]
    everything = by_name.get(_ALL)
    if alone and everything is not None and len(source.devices) == 1 and _may_be(everything, minor):
        return everything
    return None


def _may_be(device: CdiDevice, minor: int | None) -> bool:
    nodes = _nodes(device)
    return minor is None or not nodes or nodes == {minor}


def _nodes(device: CdiDevice) -> set[int]:
    """The numbers of the GPUs whose device nodes this device gives."""
    nodes = device.edits.get("deviceNodes") or ()
    paths = [str(node.get("hostPath") or node.get("path") or "") for node in nodes]
    return {int(match[1]) for path in paths if (match := _NODE.fullmatch(path))}


def _less_visible(edits: Mapping[str, Any]) -> dict[str, Any]:
    left = dict(edits)
    if "env" in left:
        left["env"] = [one for one in left["env"] or () if one.partition("=")[0] != names.ENV_VISIBLE_DEVICES]
        if not left["env"]:
            del left["env"]
    return left
