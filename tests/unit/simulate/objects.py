"""Short constructors of nodes, pods and workloads for the tests of the simulation."""

from typing import Any

from gpushare.api import names
from gpushare.api.json_objects import Json
from gpushare.api.node.device import Device, devices_annotation
from gpushare.api.node.modes import MODES
from gpushare.api.node.node_template import NodeTemplate
from gpushare.api.quantity import MemoryUnit
from gpushare.simulate.engine.engine import Settings
from gpushare.simulate.engine.simulation import Result, simulate
from gpushare.simulate.input.manifests import joined, manifests_of
from gpushare.simulate.snapshot import ClusterState, counting_of


def node(name: str, *gpus_mib: int, mode: str = "share", cpu: str = "16", **labels: str) -> Json:
    """A node, with the description by its agent if it has GPUs."""
    described = MODES[mode]
    devices = tuple(Device(index, f"GPU-{name}-{index}", mib) for index, mib in enumerate(gpus_mib))
    capacity = NodeTemplate(gpus_mib, described).capacity if gpus_mib else {}
    annotations = {names.ANN_DEVICES: devices_annotation(described, MemoryUnit.GIB, devices)}
    return {
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {names.LABEL_MODE: mode, "kubernetes.io/hostname": name, **labels},
            "annotations": annotations if gpus_mib else {},
        },
        "spec": {},
        "status": {
            "allocatable": {
                "cpu": cpu,
                "memory": "64Gi",
                "pods": "110",
                **{key: str(amount) for key, amount in capacity.items()},
            }
        },
    }


def template(mem: Any = None, core: Any = None, labels: Json | None = None, **more: Any) -> Json:
    """A pod template of one container; ``more`` goes into its spec."""
    limits = {names.GPU_MEM: mem, names.GPU_CORE: core}
    container = {
        "name": "main",
        "image": "busybox",
        "command": ["work"],
        "env": [{"name": "TOKEN", "value": "secret"}],
        "resources": {"limits": {key: value for key, value in limits.items() if value is not None}},
    }
    return {"metadata": {"labels": labels or {}}, "spec": {"containers": [container], **more}}


def pod(name: str, mem: Any = None, core: Any = None, **more: Any) -> Json:
    """A Pod's manifest."""
    made = template(mem, core, **more)
    return {"apiVersion": "v1", "kind": "Pod", **made, "metadata": {**made["metadata"], "name": name}}


def workload(kind: str, name: str, replicas: int, made: Json) -> Json:
    """A Deployment, StatefulSet, Job … with this number of pods."""
    spec = {"template": made, "parallelism" if kind == "Job" else "replicas": replicas}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def ran(
    state: ClusterState, *documents: Json, settings: Settings | None = None, reschedule: bool = False
) -> Result:
    """Simulate these manifests."""
    manifests = manifests_of([("test", one) for one in documents], state, counting_of(state))
    return simulate(
        joined(state, manifests.state), manifests.pods, settings or Settings(), reschedule=reschedule
    )


def placed(result: Result) -> dict[str, str]:
    """Node by pod name, empty for pending pods."""
    return {fate.pod.partition("/")[2]: fate.node for fate in result.fates}


def whys(result: Result) -> dict[str, str]:
    """Why pods are pending, by name."""
    return {fate.pod.partition("/")[2]: fate.why for fate in result.waiting}
