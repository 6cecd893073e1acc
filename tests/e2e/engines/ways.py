"""Every way to request a share, for autoscalers that have to create a node for it from zero."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpushare.api import names

MIB = 15360


@dataclass(frozen=True)
class Pool:
    """Nodes of one group: their GPUs of ``MIB`` and mode."""

    name: str
    mode: str = "cgpu"
    gpus: int = 1


ONE, TWO = Pool("gpus"), Pool("two", gpus=2)
COMPUTE, WHOLE = Pool("compute", "core_mem"), Pool("whole", "topology", gpus=2)
POOLS = (ONE, TWO, COMPUTE, WHOLE)


@dataclass(frozen=True)
class Way:
    """A way to request a share; two pods of it fit a node of the pool, or one if ``alone``."""

    id: str
    limits: Mapping[str, object]
    pool: Pool = ONE
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    alone: bool = False
    containers: int = 1


WAYS = (
    Way("units", {names.GPU_MEM: 6}),
    Way("bytes", {names.GPU_MEMORY: "6Gi"}),
    Way("percent", {names.GPU_MEMORY_PERCENT: 40}),
    Way("burstable", {names.GPU_MEMORY: "6Gi"}, annotations={names.ANN_GPU_MEMORY_LIMIT: "12Gi"}),
    Way("units-and-compute", {names.GPU_MEM: 2, names.GPU_CORE: 40}, COMPUTE),
    Way("bytes-and-compute", {names.GPU_MEMORY: "2Gi", names.GPU_CORE: 40}, COMPUTE),
    Way("several-gpus", {names.GPU_MEM: 18}, TWO, {names.LABEL_POD_GPU_COUNT: "2"}, alone=True),
    Way(
        "a-gpu-per-container",
        {names.GPU_MEM: 9},
        TWO,
        {names.LABEL_POD_APART: "true"},
        alone=True,
        containers=2,
    ),
    Way("whole-gpus-of-topology", {names.GPU_WHOLE: 1}, WHOLE),
    Way(
        "a-whole-gpu-by-label",
        {names.GPU_MEM: 15},
        labels={names.LABEL_POD_PLACEMENT: names.POD_PLACEMENT_WHOLE_DEVICE},
        alone=True,
    ),
)


def pods(way: Way, count: int, label: str) -> list[dict[str, Any]]:
    """Pods that sleep, for nodes whose ``label`` is the way's pool."""
    container = {
        "image": "busybox:1.36",
        "command": ["sleep", "100000"],
        "resources": {"limits": dict(way.limits)},
    }
    spec = {
        "nodeSelector": {label: way.pool.name},
        "terminationGracePeriodSeconds": 1,
        "containers": [container | {"name": f"main-{number}"} for number in range(way.containers)],
    }
    metadata = {
        "namespace": "default",
        "labels": {"app": way.id, **way.labels},
        "annotations": dict(way.annotations),
    }
    named = [metadata | {"name": f"{way.id}-{number}"} for number in range(count)]
    return [{"apiVersion": "v1", "kind": "Pod", "metadata": one, "spec": spec} for one in named]
