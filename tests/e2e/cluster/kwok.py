"""Simulated nodes next to the real ones: kwok plays their kubelets, nothing runs on them."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gpushare.api import names
from gpushare.api.node.device import Device, devices_annotation
from gpushare.api.node.modes import MODES
from gpushare.api.quantity import MemoryUnit
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.waiting import wait_for

STAGES: Final = Path(__file__).parent / "kwok-stages.yaml"
ANNOTATION: Final = "kwok.x-k8s.io/node"
TAINT: Final = {"key": ANNOTATION, "value": "fake", "effect": "NoSchedule"}
"""A taint for a simulated node, so that only pods that tolerate it are placed there."""


def node_object(
    name: str,
    *,
    gpus: int = 8,
    mib: int = 16384,
    mode: str = "share",
    labels: Mapping[str, str] | None = None,
    tainted: bool = False,
) -> dict[str, Any]:
    """A simulated node as the node agent would have described it: ``gpus`` GPUs of ``mib`` MiB each, unit 1 GiB."""
    unit = MemoryUnit.parse("1GiB")
    devices = tuple(Device(i, f"GPU-{name}-{i}", mib, "Tesla V100-SXM2-16GB") for i in range(gpus))
    capacity = {"cpu": "128", "memory": "1Ti", "ephemeral-storage": "1Ti", "pods": "256"}
    annotations = {ANNOTATION: "fake", "node.alpha.kubernetes.io/ttl": "0"}
    own = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "type": "kwok",
    }
    if gpus:
        offered = MODES[mode].capacity((mib,) * gpus, unit)
        capacity |= {resource: str(amount) for resource, amount in offered.items()}
        annotations[names.ANN_DEVICES] = devices_annotation(MODES[mode], unit, devices)
        own |= {names.LABEL_MODE: mode, names.LABEL_DESCRIBED: "true"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "annotations": annotations, "labels": {**own, **(labels or {})}},
        "spec": {"taints": [TAINT]} if tainted else {},
        "status": {"capacity": capacity, "allocatable": capacity},
    }


def add_kwok_nodes(
    cluster: Cluster, count: int, *, prefix: str = "kwok", timeout: float = 120.0, **options: Any
) -> list[str]:
    """Add ``count`` nodes ``PREFIX-0…``, start kwok where it does not run, wait until all are Ready; their names.

    ``options`` are those of :func:`node_object`.
    """
    added = [f"{prefix}-{i}" for i in range(count)]
    items = [node_object(name, **options) for name in added]
    cluster.kubectl(
        "create",
        "-f",
        "-",
        input=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}),
        timeout=timeout,
    )
    start_kwok(cluster)
    wait_for(
        f"{count} simulated nodes Ready", lambda: _ready(cluster) >= set(added), timeout=timeout, every=0.3
    )
    return added


def start_kwok(cluster: Cluster) -> None:
    """Start kwok where it does not run."""
    if cluster.process("kwok") is None:
        shutil.copy2(STAGES, cluster.layout.config / "kwok.yaml")
        cluster.start("kwok")


def remove_kwok_nodes(cluster: Cluster) -> None:
    """Delete every simulated node and stop kwok; pods on them go by kwok while it still runs."""
    cluster.kubectl("delete", "nodes", "-l", "type=kwok", "--wait=true")
    if cluster.process("kwok"):
        cluster.stop("kwok")


def _ready(cluster: Cluster) -> set[str]:
    nodes = cluster.get("/api/v1/nodes?labelSelector=type%3Dkwok", timeout=30)["items"]
    return {
        node["metadata"]["name"]
        for node in nodes
        if any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", []))
    }
