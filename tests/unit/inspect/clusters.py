"""Small clusters for display: nodes and pods as an API server sends them."""

import json
from collections.abc import Mapping, Sequence

import msgspec

from gpushare.api import names
from gpushare.api.allocation.allocation import Allocation, GpuShare, share_of
from gpushare.api.allocation.annotations import Stamp, allocation_annotations
from gpushare.api.node.device import Device, devices_annotation
from gpushare.api.node.modes import NodeMode
from gpushare.api.objects import (
    Affinity,
    Container,
    Node,
    NodeAddress,
    NodeStatus,
    ObjectMeta,
    Pod,
    PodSpec,
    PodStatus,
    ResourceRequirements,
)
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.request import request_of
from gpushare.inspect.views.allocation_model import ClusterUsage, usage_of

T4_MIB = 15360
V100_MIB = 16160


def device(
    index: int, mib: int = T4_MIB, *, healthy: bool = True, reason: str = "", model: str = "Tesla T4"
) -> Device:
    return Device(index, f"GPU-{index:08d}", mib, model, healthy, reason)


def foreign_node(
    name: str, address: str, gpus: int, units_per_gpu: int, labels: Mapping[str, str] | None = None
) -> Node:
    """A node of another agent: capacity, and no annotation that describes its GPUs."""
    amounts: dict[str, str | int | float] = {
        names.GPU_MEM: str(gpus * units_per_gpu),
        names.GPU_COUNT: str(gpus),
    }
    return _node(name, address, amounts, labels={names.LABEL_MODE: "cgpu", **(labels or {})})


def node(
    name: str,
    address: str,
    devices: Sequence[Device],
    *,
    mode: NodeMode = NodeMode.CGPU,
    unit: MemoryUnit = MemoryUnit.GIB,
    advertised: bool = True,
    cordoned: str = "",
) -> Node:
    """A node of our own agent, with the annotation that describes its GPUs; ``cordoned`` in the format of users."""
    total_units = sum(unit.count_in(one.total_mib) for one in devices)
    amounts: dict[str, str | int | float] = {
        names.GPU_MEM: str(total_units),
        names.GPU_COUNT: str(len(devices)),
    }
    if mode.gives_core:
        amounts[names.GPU_CORE] = str(100 * len(devices))
    return _node(
        name,
        address,
        amounts if advertised else {},
        labels={names.LABEL_MODE: mode.value},
        annotations={names.ANN_DEVICES: devices_annotation(mode, unit, tuple(devices))}
        | ({names.ANN_CORDONED: cordoned} if cordoned else {}),
    )


def required(*terms: dict[str, object]) -> Affinity:
    """Node affinity with these terms, of which a node must match one."""
    affinity_document = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return msgspec.convert({"nodeAffinity": affinity_document}, Affinity)


def pod(
    name: str,
    on: str,
    units: int,
    annotations: Mapping[str, str] | None = None,
    *,
    namespace: str = "default",
    core_percent: int = 0,
    phase: str = "Running",
    labels: Mapping[str, str] | None = None,
    node_selector: dict[str, str] | None = None,
    affinity: Affinity | None = None,
) -> Pod:
    limits: dict[str, str | int | float] = {names.GPU_MEM: str(units)}
    if core_percent:
        limits[names.GPU_CORE] = str(core_percent)
    container = Container("main", ResourceRequirements(limits=limits))
    return Pod(
        ObjectMeta(
            name=name,
            namespace=namespace,
            uid=f"uid-{namespace}-{name}",
            annotations=dict(annotations or {}),
            labels=dict(labels or {}),
        ),
        PodSpec(containers=[container], node_name=on, node_selector=node_selector, affinity=affinity),
        PodStatus(phase),
    )


def first_generation(index: int, units: int) -> dict[str, str]:
    return {
        names.ANN_MEM_INDEX: str(index),
        names.ANN_MEM_POD: str(units),
        names.ANN_MEM_ASSIGNED: "true",
        names.ANN_MEM_ASSUME_TIME: "1",
    }


def second_generation(units_by_gpu: Mapping[int, int]) -> dict[str, str]:
    by_gpu = {str(index): units for index, units in units_by_gpu.items()}
    return {names.ANN_ALLOCATION: json.dumps({"0": by_gpu}), names.ANN_ASSIGNED: "true"}


def placed(
    name: str,
    on: str,
    gpu: Device,
    units: int,
    *,
    unit: MemoryUnit = MemoryUnit.GIB,
    core_percent: int = 0,
    namespace: str = "default",
) -> Pod:
    """A pod to which our own scheduler allocated ``units`` of ``gpu``, on a node counting in ``unit``."""
    share = share_of(gpu, unit.count_in(gpu.total_mib), units, core_percent)
    return with_allocation(
        pod(name, on, units, core_percent=core_percent, namespace=namespace), [share], unit
    )


def with_allocation(waiting: Pod, shares: Sequence[GpuShare], unit: MemoryUnit | None) -> Pod:
    """``waiting`` with every annotation that a bound pod has."""
    request = request_of(waiting)
    assert request is not None
    allocation = Allocation(tuple(shares), {"main": tuple(shares)}, unit)
    assert waiting.metadata.annotations is not None
    waiting.metadata.annotations.update(allocation_annotations(allocation, request, Stamp(1, assigned=True)))
    return waiting


def seen(nodes: Sequence[Node], pods: Sequence[Pod] = ()) -> ClusterUsage:
    """The cluster, in which nothing needs a warning."""
    cluster = usage_of(nodes, pods)
    assert cluster.warnings == ()
    return cluster


def _node(
    name: str,
    address: str,
    amounts: dict[str, str | int | float],
    *,
    labels: Mapping[str, str],
    annotations: Mapping[str, str] | None = None,
) -> Node:
    return Node(
        metadata=ObjectMeta(name=name, labels=dict(labels), annotations=dict(annotations or {})),
        status=NodeStatus(
            capacity={"cpu": "8", **amounts},
            allocatable={"cpu": "7900m", **amounts},
            addresses=[NodeAddress("Hostname", name), NodeAddress("InternalIP", address)],
        ),
    )
