"""Whether a node would take a request if it were empty and healthy, as a new node of its kind would be."""

import msgspec

from gpushare.api.node.device import NodeDevices
from gpushare.api.request.request import Request
from gpushare.ledger.ledger import Ledger


def would_hold(node: NodeDevices, request: Request) -> bool:
    """Tried in a ledger of this node alone."""
    return Ledger.of([emptied(node)]).best(request, [node.name]) is not None


def emptied(node: NodeDevices) -> NodeDevices:
    """``node`` with all GPUs in service and open to new pods."""
    devices = tuple(
        msgspec.structs.replace(
            device, healthy=True, reason="", foreign_mib=0, cordoned=False, kept_back=False
        )
        for device in node.devices
    )
    return msgspec.structs.replace(node, devices=devices, refusal="")
