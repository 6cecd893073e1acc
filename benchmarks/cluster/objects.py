"""Nodes and pods of the benchmark, as a node agent describes them and as users write them."""

from typing import Any, Final

from benchmarks.api_server import described_node, node_name
from gpushare.api import names
from gpushare.api.node.device import devices_annotation
from gpushare.api.quantity import MemoryUnit

NAMESPACE: Final = "bench"
GPU_MIB: Final = 81920
#: Every variant runs under our scheduler name.
SCHEDULER: Final = names.SCHEDULER_NAME
#: Marks the nodes that kwok simulates.
PLAYED: Final = "gpushare.dev/bench"


def node(number: int) -> dict[str, Any]:
    """A node of eight equal GPUs, with the node agent's annotation."""
    described = described_node(number, GPU_MIB, MemoryUnit.GIB)
    capacity = {
        "cpu": "128",
        "memory": "1056404Mi",
        "ephemeral-storage": "500Gi",
        "pods": "256",
        names.GPU_MEM: str(described.total_units),
        names.GPU_COUNT: str(len(described.devices)),
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": node_name(number),
            "labels": {
                PLAYED: "true",
                names.LABEL_MODE: described.mode.value,
                "kubernetes.io/hostname": node_name(number),
                "kubernetes.io/os": "linux",
                "topology.kubernetes.io/zone": f"zone-{number % 3}",
            },
            "annotations": {
                names.ANN_DEVICES: devices_annotation(described.mode, described.unit, described.devices)
            },
        },
        "status": {"capacity": capacity, "allocatable": capacity},
    }


def pod(name: str, units: int) -> dict[str, Any]:
    """A pod that requests ``units`` of GPU memory on one GPU, as created by a ReplicaSet."""
    labels = {"app": "bench", "pod-template-hash": "5d4f8c7b9c"}
    resources = {"cpu": "100m", "memory": "256Mi", names.GPU_MEM: str(units)}
    container = {
        "name": "main",
        "image": "registry.example/bench:1",
        "command": ["sleep", "100000"],
        "env": [{"name": "MODEL", "value": "resnet50"}, {"name": "BATCH", "value": "32"}],
        "resources": {"limits": resources, "requests": resources},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "schedulerName": SCHEDULER,
            "containers": [container],
            "terminationGracePeriodSeconds": 0,
        },
    }
