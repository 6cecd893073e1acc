"""Whether a node would hold a request if nobody were on it and nothing were wrong with it: what a new one of its kind would do."""

import msgspec

from gpushare.api.node.device import NodeDevices
from gpushare.api.request.request import Request
from gpushare.ledger.ledger import Ledger


def would_hold(node: NodeDevices, request: Request) -> bool:
    """Decided by a ledger of this node alone."""
    return Ledger.of([emptied(node)]).best(request, [node.name]) is not None


def emptied(node: NodeDevices) -> NodeDevices:
    """``node`` with all of its GPUs in service and taking new pods."""
    devices = tuple(
        msgspec.structs.replace(
            device, healthy=True, reason="", foreign_mib=0, cordoned=False, kept_back=False
        )
        for device in node.devices
    )
    return msgspec.structs.replace(node, devices=devices, refusal="")
