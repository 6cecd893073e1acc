"""Pods and nodes as the API server has them, and the scheduler's allocation written on a pod."""

import itertools
from collections.abc import Sequence
from typing import Any

from gpushare.api import names
from gpushare.api.allocation.allocation import Allocation, allocate_over
from gpushare.api.allocation.annotations import Stamp, allocation_annotations
from gpushare.api.node.device import Device, NodeDevices
from gpushare.api.node.modes import NodeMode
from gpushare.api.objects import decode_pod
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.request import request_of
from gpushare.nodeagent.driver.nvml import FoundGpu

NODE = "n1"
_numbers = itertools.count(1)


def node(mode: str | None = "share", **status: Any) -> dict[str, Any]:
    labels = {} if mode is None else {names.LABEL_MODE: mode}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": NODE, "uid": "node-uid", "labels": labels, "annotations": {}},
        "spec": {},
        "status": {"capacity": {"cpu": "2"}, "allocatable": {"cpu": "2"}, **status},
    }


def container(name: str, units: int, core: int = 0, **more: Any) -> dict[str, Any]:
    limits = {names.GPU_MEM: str(units)} | ({names.GPU_CORE: str(core)} if core else {})
    return {"name": name, "resources": {"limits": limits, "requests": dict(limits)}, **more}


def pod(
    name: str,
    *containers: dict[str, Any],
    init: tuple[dict[str, Any], ...] = (),
    labels: dict[str, str] | None = None,
) -> dict[str, Any]:
    """A pod that is bound to our node, without an allocation."""
    number = next(_numbers)
    spec: dict[str, Any] = {"nodeName": NODE, "containers": list(containers)}
    if init:
        spec["initContainers"] = list(init)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{number}-{name}",
            "creationTimestamp": "2026-11-21T08:00:00Z",
            "labels": labels or {},
            "annotations": {},
        },
        "spec": spec,
        "status": {"phase": "Pending"},
    }


def decide(
    made: dict[str, Any],
    gpus: list[FoundGpu],
    on: int | Sequence[int],
    *,
    unit: MemoryUnit = MemoryUnit.GIB,
    mode: NodeMode = NodeMode.SHARE,
    at_ns: int | None = None,
) -> Allocation:
    """Write an allocation of GPU ``on``, or several, on the pod, as the scheduler's Binding does."""
    devices = tuple(Device(one.index, one.uuid, one.total_mib) for one in gpus)
    described = NodeDevices(NODE, mode, unit, devices)
    request = request_of(decode_pod(made))
    assert request is not None
    places = (on,) if isinstance(on, int) else on
    allocation = allocate_over(described, [devices[place] for place in places], request)
    stamp = Stamp(next(_numbers) if at_ns is None else at_ns, assigned=False)
    made["metadata"]["annotations"] |= allocation_annotations(allocation, request, stamp)
    return allocation
