"""Pods and nodes as tests write them."""

from typing import Any

from gpushare_playground.objects import Json


def a_pod(name: str = "p", *, uid: str = "", priority: int = 0, **spec: Any) -> Json:
    """A pod in namespace default; ``requests`` are the requests and limits of its only container."""
    requests = spec.pop("requests", {})
    container = {"name": "c", "image": "i", "resources": {"limits": requests, "requests": requests}}
    defaults = {"containers": [container], "priority": priority, "schedulerName": "ack-co-scheduler"}
    metadata = {"name": name, "namespace": "default", "uid": uid or f"uid-{name}"}
    return {"metadata": metadata, "spec": {**defaults, **spec}}


def a_node(
    name: str = "n1", *, labels: Json | None = None, taints: list[Json] | None = None, **amounts: str
) -> Json:
    """A node; ``amounts`` name allocatable resources (``gpu_mem`` for aliyun.com/gpu-mem)."""
    capacity = {"cpu": "8", "memory": "16Gi", "pods": "110", **amounts}
    allocatable = {{"gpu_mem": "aliyun.com/gpu-mem"}.get(key, key): value for key, value in capacity.items()}
    spec = {"taints": taints} if taints else {}
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "labels": {"kubernetes.io/hostname": name, **(labels or {})},
        },
        "spec": spec,
        "status": {"allocatable": allocatable, "capacity": allocatable},
    }
