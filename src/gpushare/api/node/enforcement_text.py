"""Whether containers are held to the share that a node gives them, in people's words. Pure.

The node agent says it on its node (``gpushare.dev/isolation``), and is believed; of mode ``share`` it is known without. It is so of
what is given now: a container keeps what it got when it was started, and what held on the node then is written nowhere.
"""

from collections.abc import Iterable

from gpushare.api.allocation.allocation import GpuShare
from gpushare.api.node.device import NodeDevices
from gpushare.api.node.modes import NodeMode


def not_held(node: NodeDevices, shares: Iterable[GpuShare]) -> str:
    """Why containers that are given ``shares`` of the node's GPUs now are not held to them.

    Empty where they are, where they have the GPUs whole, and where nobody says: on a node of another's agent.
    """
    part = [share for share in shares if share.units < share.device_units]
    if not part or not node.mode.shares_memory:
        return ""
    way, _, why = node.isolation.partition(": ")
    if not node.mode.isolated:
        return node.mode.trusts_text
    if way == "none":
        return why
    if way.startswith("driver") and any(share.core_percent for share in part):
        return "the driver's own limits are of memory alone, and nothing holds them to their compute"
    return ""


def not_held_text(node: str, why: str) -> str:
    """What people are told of a pod that was given its share on ``node`` at some time, by what ``not_held`` says of it now."""
    return (
        f"Node {node} does not hold containers to shares that it gives now: {why}. "
        "One that was given its share before that was so is held as it was then."
    )


def cannot_text(mode: NodeMode, why: str) -> str:
    """What the node agent says where it is to hold containers to their share, and cannot."""
    return f"{_asks(mode)}{why}"


def not_given(node: NodeDevices) -> str:
    """Why isolation, which the node's mode asks for, is not given there; empty where it is, or where its agent is told to give none."""
    way, _, why = node.isolation.partition(": ")
    return why if way == "none" and why.startswith(_asks(node.mode)) else ""


def _asks(mode: NodeMode) -> str:
    return f"mode {mode.value} asks for isolation, and this node cannot: "
