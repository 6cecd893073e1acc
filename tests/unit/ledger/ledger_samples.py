"""Short constructors of nodes, requests and allocations for the tests of the ledger."""

from collections.abc import Iterable, Mapping

from gpushare.api.allocation.allocation import Allocation, GpuShare
from gpushare.api.node.device import Device, NodeDevices, Placement
from gpushare.api.node.modes import NodeMode
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.request import ContainerKind, ContainerRequest, Request

V100 = 16160
T4 = 15360
A100 = 81559


def gpus(node: str, *sizes_mib: int, sick: Mapping[int, str] | None = None) -> tuple[Device, ...]:
    """GPUs of these sizes; ``sick`` gives the reason for each that is not healthy."""
    reasons = sick or {}
    return tuple(
        Device(index, f"{node}-gpu{index}", mib, healthy=index not in reasons, reason=reasons.get(index, ""))
        for index, mib in enumerate(sizes_mib)
    )


def node(
    name: str = "n1",
    *sizes_mib: int,
    mode: NodeMode = NodeMode.CGPU,
    unit: MemoryUnit = MemoryUnit.GIB,
    placement: Placement = Placement.BINPACK,
    max_pods: int | None = None,
    refusal: str = "",
    sick: Mapping[int, str] | None = None,
) -> NodeDevices:
    devices = gpus(name, *sizes_mib, sick=sick)
    return NodeDevices(name, mode, unit, devices, placement, max_pods, refusal)


def asks(memory_units: int, core_percent: int = 0, *, gpus: int = 1, whole: bool = False) -> Request:
    """A request for this much on each of ``gpus`` GPUs, which are exclusive if ``whole``."""
    one = ContainerRequest("main", ContainerKind.APP, 0, memory_units * gpus, core_percent)
    return Request(memory_units, core_percent, (one,), gpus, whole)


def counts(gpus: int) -> Request:
    """A request for a number of whole GPUs, ``aliyun.com/gpu``."""
    one = ContainerRequest("main", ContainerKind.APP, 0, 0, 0, gpus)
    return Request(1, 0, (one,), gpus, whole_device=True, by_gpu=True)


def share(uuid: str, mib: int, units: int = 1, of: int = 15, core: int = 0, index: int = 0) -> GpuShare:
    return GpuShare(uuid, index, mib, units, of, core)


def holding(*shares: GpuShare, unit: MemoryUnit | None = MemoryUnit.GIB) -> Allocation:
    return Allocation(tuple(shares), {"main": tuple(shares)}, unit)


def uuids(shares: Iterable[GpuShare]) -> list[str]:
    return [one.uuid for one in shares]
