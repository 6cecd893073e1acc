"""Messages on whether a node enforces the shares that it allocates. No I/O.

The node agent reports it on its node (``gpushare.dev/isolation``); in mode ``share`` nothing is enforced. It applies to new containers: a
running container keeps the isolation that it started with, which is not recorded anywhere.
"""

from collections.abc import Iterable

from gpushare.api.allocation.allocation import GpuShare
from gpushare.api.node.device import NodeDevices
from gpushare.api.node.modes import NodeMode


def not_held(node: NodeDevices, shares: Iterable[GpuShare]) -> str:
    """Why the node does not enforce ``shares`` for containers that it starts now.

    Empty if it does, for whole GPUs, and if it is unknown: on a node with another agent.
    """
    partial = [share for share in shares if share.units < share.device_units]
    if not partial or not node.mode.shares_memory:
        return ""
    backend, _, why = node.isolation.partition(": ")
    if not node.mode.isolated:
        return node.mode.trusts_text
    if backend == "none":
        return why
    if backend.startswith("driver") and any(share.core_percent for share in partial):
        return "the driver's own limits cover only memory; compute is not enforced"
    return ""


def not_held_text(node: str, why: str) -> str:
    """The message on a pod that got its share on ``node`` at some earlier time; ``why`` is that of ``not_held`` now."""
    return (
        f"Node {node} does not enforce the shares of new containers: {why}. "
        "Containers that started earlier keep their isolation."
    )


def cannot_text(mode: NodeMode, why: str) -> str:
    """The node agent's message if its mode includes isolation that it cannot provide."""
    return f"{_failure_prefix(mode)}{why}"


def isolation_failure(node: NodeDevices) -> str:
    """Why the node does not provide the isolation of its mode; empty if it does, or if isolation is switched off."""
    backend, _, why = node.isolation.partition(": ")
    return why if backend == "none" and why.startswith(_failure_prefix(node.mode)) else ""


def _failure_prefix(mode: NodeMode) -> str:
    return f"mode {mode.value} asks for isolation, and this node cannot: "
