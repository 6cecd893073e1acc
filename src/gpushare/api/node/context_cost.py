"""Messages on shares that are smaller than a CUDA context, by the contexts measured on a node's GPUs. No I/O.

The context counts against a container's limit, so a program with a smaller share cannot start. Not checked are containers without
isolation, whole GPUs, GPUs without a measured context, and nodes with MPS, where our libraries do not measure contexts.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from gpushare.api.allocation.allocation import Allocation, GpuShare, allocated_share
from gpushare.api.node.device import Device, NodeDevices
from gpushare.api.node.enforcement_text import not_held
from gpushare.api.request.pluralize import counted
from gpushare.api.request.request import Request

#: Bounds of a measured context, in MiB (``isolation/hooks/contexts.c``, LEAST_BYTES and MOST_BYTES).
LEAST_MIB: Final = 16
MOST_MIB: Final = 2048


class _Cramped(NamedTuple):
    """A share of ``device`` that is smaller than a context there."""

    node: NodeDevices
    device: Device
    share: GpuShare

    @property
    def suggestion(self) -> str:
        # The smallest n with floor(MiB * n / units) >= the context.
        min_units = -(-self.device.context_mib * self.share.device_units // self.device.total_mib)
        return (
            f"no CUDA program can start with that: request {min_units} units of {self.node.unit.setting} "
            "or more of each GPU"
        )


def too_small_there(node: NodeDevices, allocation: Allocation) -> list[str]:
    """A message for each container of an allocated pod whose share is smaller than a context on ``node``."""
    return [
        f"container {name} has {cramped.share.mib} MiB of GPU {cramped.device.label} of node {node.name}, less than the "
        f"{cramped.device.context_mib} MiB that a CUDA context takes there; {cramped.suggestion}"
        for name, shares in allocation.containers.items()
        if (cramped := next(_cramped(node, shares), None)) is not None
    ]


def too_small_anywhere(nodes: Iterable[NodeDevices], request: Request) -> list[str]:
    """A message for each container of a pending pod whose share would be smaller than a context on every measured GPU."""
    if request.by_gpu or request.whole_device:
        return []
    measured = [
        (node, device)
        for node in nodes
        if _measures(node) and request.unit_mib in (0, node.unit.mib)
        for device in node.devices
        if device.context_mib
    ]
    messages = []
    for container in request.containers:
        units = request.part_of(container)
        on_each_gpu = [
            next(_cramped(node, [allocated_share(device, node.units_of(device), request, units, 0)]), None)
            for node, device in measured
        ]
        cramped = [share for share in on_each_gpu if share is not None]
        if units and cramped and len(cramped) == len(on_each_gpu):
            least = min(cramped, key=lambda share: share.device.context_mib)
            messages.append(
                f"container {container.name} would get {least.share.mib} MiB of a GPU of node {least.node.name}, less than the "
                f"{least.device.context_mib} MiB that a CUDA context takes there, the least of {counted(len(on_each_gpu), 'GPU')} where "
                f"that is known; {least.suggestion}"
            )
    return messages


def can_be_too_small(shares_mib: Iterable[int]) -> bool:
    """Whether any share, in MiB of one GPU, may be smaller than a context on some GPU."""
    return any(0 < mib < MOST_MIB for mib in shares_mib)


def _measures(node: NodeDevices) -> bool:
    """Whether the node's containers load our libraries, which measure contexts."""
    return node.mode.backend == "preload"


def _cramped(node: NodeDevices, shares: Iterable[GpuShare]) -> Iterator[_Cramped]:
    for share in shares:
        device = node.device_of(share.uuid, share.index)
        if device is None or not 0 < share.mib < device.context_mib or share.units >= share.device_units:
            continue
        if _measures(node) and not not_held(node, [share]):
            yield _Cramped(node, device, share)
