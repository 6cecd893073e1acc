"""The node's GPUs as they are described to the scheduler: what the driver reports, and what the agent knows of them beyond that. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from gpushare.api.node.device import Device, NodeDevices, with_cordons
from gpushare.api.objects import Node
from gpushare.nodeagent.driver.discovery import DivisibleGpu


class Known(NamedTuple):
    """What is known of GPUs beside the driver's report, by UUID.

    ``reserved_mib``: what no container can use; ``foreign``: what is used without an allocation, in MiB, and by what; ``lacking``: why
    no container can get or be isolated on a GPU; ``kept``: why one that works is kept back. ``claim_devices``: names in ResourceSlices of
    instances that were created for claims, by index.
    """

    reserved_mib: Mapping[str, int]
    foreign: Callable[[str], tuple[int, str]]
    contexts_mib: Mapping[str, int]
    lacking: Mapping[str, str]
    kept: Mapping[str, str]
    claim_devices: Mapping[int, str]


def described(device: Device, known: Known) -> Device:
    """``device`` with what is ``known`` of it."""
    changes: dict[str, Any] = {}
    if device.index in known.claim_devices:
        changes["claim_device"] = known.claim_devices[device.index]
    total_mib = device.total_mib - known.reserved_mib.get(device.uuid, 0)
    foreign_mib, foreign_by = known.foreign(device.uuid)
    if foreign_mib:
        changes |= {"foreign_mib": min(foreign_mib, total_mib), "foreign_by": foreign_by}
    if device.uuid in known.contexts_mib:
        changes["context_mib"] = known.contexts_mib[device.uuid]
    why = known.lacking.get(device.uuid) or known.kept.get(device.uuid)
    if device.healthy and why:
        changes |= {"healthy": False, "reason": why, "kept_back": device.uuid not in known.lacking}
    return msgspec.structs.replace(device, total_mib=total_mib, **changes)


def offered_to_claims(
    gpus: Iterable[DivisibleGpu], trouble: str, node: NodeDevices, labelled: Node
) -> Sequence[DivisibleGpu]:
    """GPUs in MIG mode with the cordons of the node ``labelled``, and unhealthy if ``trouble`` keeps containers from all GPUs of ``node``."""
    gpus = tuple(gpus)
    devices = tuple(
        msgspec.structs.replace(gpu.device, healthy=False, reason=trouble)
        if trouble and gpu.device.healthy
        else gpu.device
        for gpu in gpus
    )
    cordoned = with_cordons(msgspec.structs.replace(node, devices=devices), labelled).devices
    return [replace(gpu, device=device) for gpu, device in zip(gpus, cordoned, strict=True)]
