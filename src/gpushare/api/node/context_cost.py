"""Shares that a CUDA context does not fit into, by what one was measured to take on a node's GPUs, in people's words. Pure.

The context counts against a container's limit, so a program that is held to less cannot start. Nothing is said of containers
that are not held, of GPUs that are given whole, of GPUs on which no context was measured yet, and under MPS, where our libraries
measure nothing.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from gpushare.api.allocation.allocation import Allocation, GpuShare, given_share
from gpushare.api.node.device import Device, NodeDevices
from gpushare.api.node.enforcement_text import not_held
from gpushare.api.request.pluralize import counted
from gpushare.api.request.request import Request

#: What a context can be measured to take, in MiB (``isolation/hooks/contexts.c``, LEAST_BYTES and MOST_BYTES).
LEAST_MIB: Final = 16
MOST_MIB: Final = 2048


class _Cramped(NamedTuple):
    """A share of ``device`` that is smaller than a context there."""

    node: NodeDevices
    device: Device
    share: GpuShare

    @property
    def suggestion(self) -> str:
        # The least n with floor(MiB * n / units) at or above the context.
        least = -(-self.device.context_mib * self.share.device_units // self.device.total_mib)
        return (
            f"a program that needs the GPU cannot start with that: ask for {least} units of {self.node.unit.setting} "
            "or more of each GPU"
        )


def too_small_there(node: NodeDevices, allocation: Allocation) -> list[str]:
    """Of a pod that has ``allocation`` on ``node``: each container whose share is smaller than a context there, and what to do."""
    return [
        f"container {name} has {one.share.mib} MiB of GPU {one.device.index} of node {node.name}, less than the "
        f"{one.device.context_mib} MiB that a CUDA context takes there; {one.suggestion}"
        for name, shares in allocation.containers.items()
        if (one := next(_cramped(node, shares), None)) is not None
    ]


def too_small_anywhere(nodes: Iterable[NodeDevices], request: Request) -> list[str]:
    """Of a pod that waits: each container whose share would be smaller than a context on every GPU where one was measured."""
    if request.by_gpu or request.whole_device:
        return []
    measured = [
        (node, device)
        for node in nodes
        if _measures(node) and request.unit_mib in (0, node.unit.mib)
        for device in node.devices
        if device.context_mib
    ]
    found = []
    for container in request.containers:
        units = request.part_of(container)
        ways = [
            next(_cramped(node, [given_share(device, node.units_of(device), request, units, 0)]), None)
            for node, device in measured
        ]
        cramped = [one for one in ways if one is not None]
        if units and cramped and len(cramped) == len(ways):
            least = min(cramped, key=lambda one: one.device.context_mib)
            found.append(
                f"container {container.name} would get {least.share.mib} MiB of a GPU of node {least.node.name}, less than the "
                f"{least.device.context_mib} MiB that a CUDA context takes there, the least of {counted(len(ways), 'GPU')} where "
                f"that is known; {least.suggestion}"
            )
    return found


def can_be_too_small(shares_mib: Iterable[int]) -> bool:
    """Whether any share, in MiB of one GPU, is so small that a context may not fit into it on some GPU."""
    return any(0 < one < MOST_MIB for one in shares_mib)


def _measures(node: NodeDevices) -> bool:
    """Whether our libraries are in the node's containers."""
    return node.mode.backend == "preload"


def _cramped(node: NodeDevices, shares: Iterable[GpuShare]) -> Iterator[_Cramped]:
    for share in shares:
        device = node.device_of(share.uuid, share.index)
        if device is None or not 0 < share.mib < device.context_mib or share.units >= share.device_units:
            continue
        if _measures(node) and not not_held(node, [share]):
            yield _Cramped(node, device, share)
