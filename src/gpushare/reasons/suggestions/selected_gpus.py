"""Suggestions for pods whose annotations exclude the GPUs of every node."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from gpushare.api.node.device import Device, NodeDevices
from gpushare.api.request.describe import memory_text

#: Kinds of GPUs that are listed.
_MOST_KINDS: Final = 4


def other_gpus(nodes: Iterable[NodeDevices | None]) -> str:
    """Names the kinds of GPUs that ``nodes`` have, so that a misspelt model is obvious."""
    kinds = Counter(kind_text(device) for node in nodes if node is not None for device in node.devices)
    return (
        "a node with GPUs that its annotations allow, or other annotations in its template: "
        f"these nodes have {listed_kinds(kinds)}"
    )


def listed_kinds(kinds: Counter[str]) -> str:
    """The most common of ``kinds`` (``kind_text``) with their numbers: ``4 × NVIDIA A10 (ampere, 23028 MiB)``."""
    listed = [f"{count} × {kind}" for kind, count in kinds.most_common(_MOST_KINDS)]
    more = [f"{len(kinds) - _MOST_KINDS} more kinds"] if len(kinds) > _MOST_KINDS else []
    return ", ".join(listed + more) or "no GPUs"


def kind_text(device: Device) -> str:
    """Model, architecture and memory of a GPU: ``NVIDIA A10 (ampere, 23028 MiB)``."""
    details = ", ".join(filter(None, (device.architecture, memory_text(device.total_mib))))
    return f"{device.model or 'unknown model'} ({details})"
