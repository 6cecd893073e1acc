"""GPUs that another device plugin offers: on nodes that are not ours, and by mistake on one of ours. Pure."""

import re
from collections.abc import Mapping
from typing import Final

from gpushare.api.errors import InvalidQuantity
from gpushare.api.objects import Node
from gpushare.api.quantity import parse_amount

#: Resources of NVIDIA's plugin (with time-slicing and MIG) and of HAMi, Volcano and Tencent, which share GPUs too.
OTHER_PLUGINS: Final = re.compile(r"nvidia\.com/(?:v?gpu|mig-)|volcano\.sh/vgpu|tencent\.com/vcuda")
#: Device IDs of NVIDIA's plugin: a UUID, and with time-slicing or MPS ``::`` and the number of the replica.
_UUID: Final = re.compile(r"((?:GPU|MIG)-[0-9A-Za-z-]+)(?:::\d+)?")
#: Labels that NVIDIA's GPU feature discovery writes: how the plugin shares GPUs, and what it does with MIG instances.
_SHARING: Final = "nvidia.com/gpu.sharing-strategy"
_MIG: Final = "nvidia.com/mig.strategy"
_NONE: Final = ("", "none")


def is_of_other_plugin(resource: str) -> bool:
    """Whether ``resource`` belongs to another device plugin for GPUs."""
    return OTHER_PLUGINS.match(resource) is not None


def offered_by_others(node: Node) -> Mapping[str, int]:
    """What other device plugins offer of the node's GPUs, by resource; empty if none does."""
    offered = {}
    for resource, amount in (node.status.capacity or {}).items():
        if is_of_other_plugin(resource):
            try:
                offered[resource] = parse_amount(amount, resource)
            except InvalidQuantity:
                continue
    return {resource: amount for resource, amount in sorted(offered.items()) if amount}


def offer_text(offered: Mapping[str, int]) -> str:
    """The offer for people: ``nvidia.com/gpu: 8``."""
    return ", ".join(f"{resource}: {amount}" for resource, amount in offered.items())


def strategy_of(node: Node) -> str:
    """How NVIDIA's plugin shares the node's GPUs, as far as labels say: ``time-slicing``, ``mps``, ``MIG single``; empty: whole GPUs."""
    labels = node.metadata.labels or {}
    sharing, mig = labels.get(_SHARING, ""), labels.get(_MIG, "")
    words = [*([sharing] if sharing not in _NONE else ()), *([f"MIG {mig}"] if mig not in _NONE else ())]
    return ", ".join(words)


def gpu_of(device_id: str) -> str:
    """The UUID of the GPU or instance that a device ID of NVIDIA's plugin names; empty if it names none."""
    found = _UUID.fullmatch(device_id)
    return found[1] if found is not None else ""
