"""Whether containers are held to the share that they were given on a node, in people's words. Pure.

The node agent says it on its node (``gpushare.dev/isolation``), and is believed; of mode ``share`` it is known without.
"""

from collections.abc import Iterable

from gpushare.model.allocation import GpuShare
from gpushare.model.device import NodeDevices, NodeMode


def not_held(node: NodeDevices, shares: Iterable[GpuShare]) -> str:
    """Why containers with ``shares`` of the node's GPUs are not held to them.

    Empty where they are, where they have the GPUs whole, and where nobody says: on a node of another's agent.
    """
    part = [share for share in shares if share.units < share.device_units]
    if not part or not node.mode.shares_memory:
        return ""
    way, _, why = node.isolation.partition(": ")
    if node.mode is NodeMode.SHARE:
        return f"mode {node.mode.value} trusts containers to keep to their share"
    if way == "none":
        return why
    if way.startswith("driver") and any(share.core_percent for share in part):
        return "the driver's own limits are of memory alone, and nothing holds them to their compute"
    return ""
