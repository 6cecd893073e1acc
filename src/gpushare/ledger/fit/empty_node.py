"""Whether a node would hold a request if nobody were on it and nothing were wrong with it: what a new one of its kind would do."""

import msgspec

from gpushare.api.node.device import NodeDevices
from gpushare.api.request.request import Request
from gpushare.ledger.ledger import Ledger


def would_hold(node: NodeDevices, request: Request) -> bool:
    """Decided by a ledger of this node alone."""
    devices = tuple(
        msgspec.structs.replace(
            device, healthy=True, reason="", foreign_mib=0, cordoned=False, kept_back=False
        )
        for device in node.devices
    )
    ledger = Ledger()
    ledger.set_node(msgspec.structs.replace(node, devices=devices, refusal=""))
    return ledger.best(request, [node.name]) is not None
