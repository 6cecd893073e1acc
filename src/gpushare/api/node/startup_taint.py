"""Whether a new node's GPUs are ready, so that its startup taint can be removed. No I/O."""

from typing import Final

import msgspec

from gpushare.api import names
from gpushare.api.errors import InvalidQuantity, MalformedDevices
from gpushare.api.node.device import described_devices, mode_of
from gpushare.api.objects import Node
from gpushare.api.quantity import parse_quantity

#: cluster-autoscaler treats nodes with a taint of this prefix as starting; the group's nodes start with this one.
STARTUP_TAINT: Final = "startup-taint.cluster-autoscaler.kubernetes.io/gpushare"


class _Taint(msgspec.Struct):
    key: str = ""


class _Spec(msgspec.Struct):
    taints: list[_Taint] | None = None


class _Tainted(msgspec.Struct):
    spec: _Spec = msgspec.field(default_factory=_Spec)


_TAINTED: Final = msgspec.json.Decoder(_Tainted)
_MARK: Final = STARTUP_TAINT.encode()


def has_startup_taint(raw: bytes) -> bool:
    """Whether a node's JSON contains the taint; cheap, as nearly all nodes do not have it."""
    return _MARK in raw and any(
        taint.key == STARTUP_TAINT for taint in _TAINTED.decode(raw).spec.taints or ()
    )


def lacks(node: Node) -> str:
    """What ``node`` lacks to accept GPU pods; empty if it is ready.

    The agent must have described it in the mode of its label, and the kubelet must offer the mode's resources. GPUs allocated through
    claims are published in a ResourceSlice instead.
    """
    name = node.metadata.name
    try:
        described, labelled = described_devices(node), mode_of(node)
    except MalformedDevices as error:
        return error.problem
    mode, _, devices = described or (None, None, ())
    if not devices:
        return f"no node agent has described its GPUs yet (annotation {names.ANN_DEVICES})"
    if mode is not labelled:
        return f"its agent has not switched to mode {labelled.value} yet"
    for resource in labelled.resources:
        try:
            offered = parse_quantity((node.status.allocatable or {}).get(resource, 0), f"node {name}")
        except InvalidQuantity as error:
            return error.problem
        if offered <= 0:
            return f"its kubelet does not offer {resource} yet"
    return "" if labelled.offers_gpus else f"mode {labelled.value} offers no gpushare resource"
