"""Facts of a healthy cluster: what helm renders for Kubernetes 1.36, with the statuses of a running installation, and a node."""

import datetime
import json
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import yaml

from gpushare.api import names
from gpushare.api.allocation.allocation import GpuShare
from gpushare.api.node.device import Device, devices_annotation
from gpushare.api.node.modes import NodeMode
from gpushare.api.objects import Pod, decode_node, decode_pod
from gpushare.api.quantity import MemoryUnit
from gpushare.doctor.cluster.facts import ClusterFacts, Json, NodeDetails, SeenNode
from gpushare.doctor.cluster.reader import READS, right_name

GOLDEN = Path(__file__).parents[2] / "e2e" / "charts" / "golden"
NOW_S = 1_795_000_000.0


def ago(seconds: float) -> str:
    """A time in the format of Leases."""
    return datetime.datetime.fromtimestamp(NOW_S - seconds, datetime.UTC).isoformat().replace("+00:00", "Z")


GPU = Device(0, "GPU-1", 16160, "Tesla V100")


@cache
def _read(name: str) -> list[Json]:
    return [one for one in yaml.load_all((GOLDEN / name).read_text(), yaml.CSafeLoader) if one]


@cache
def _written(name: str, kind: str) -> str:
    return json.dumps([one for one in _read(name) if one["kind"] == kind])


def rendered(name: str, kind: str) -> list[Json]:
    """The objects of a kind that helm renders into a file, for the caller to change."""
    found: list[Json] = json.loads(_written(name, kind))  # takes a fifth of the time of a deep copy
    return found


def objects(kind: str) -> list[Json]:
    """The objects of a kind; policies are in the files only by name."""
    return [
        one if "metadata" in one else {"metadata": {"name": one["name"]}}
        for name in ("installer-1.36.yaml", "scheduler-1.36.yaml")
        for one in rendered(name, kind)
    ]


def node_of(
    name: str = "n1",
    *,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    allocatable: dict[str, str] | None = None,
    conditions: list[Json] | None = None,
    taints: list[Json] | None = None,
    kubelet: str = "v1.36.1",
    mode: NodeMode = NodeMode.SHARE,
    gpus: tuple[Device, ...] = (GPU,),
) -> SeenNode:
    described = {names.ANN_DEVICES: devices_annotation(mode, MemoryUnit.GIB, gpus)}
    raw = {
        "metadata": {
            "name": name,
            "labels": {names.LABEL_MODE: mode.value} if labels is None else labels,
            "annotations": described if annotations is None else annotations,
        },
        "spec": {"taints": taints or []},
        "status": {
            "allocatable": {names.GPU_MEM: "15"} if allocatable is None else allocatable,
            "conditions": conditions or [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"kubeletVersion": kubelet},
        },
    }
    text = json.dumps(raw).encode()
    return SeenNode(decode_node(text), msgspec.json.decode(text, type=NodeDetails))


def gpu_pod(name: str, node: str = "n1", **metadata: Any) -> Pod:
    return decode_pod(
        {
            "metadata": {"name": name, "namespace": "default", "uid": f"u-{name}", **metadata},
            "spec": {
                "nodeName": node,
                "schedulerName": names.SCHEDULER_NAME,
                "containers": [{"name": "c", "resources": {"limits": {names.GPU_MEM: "3"}}}],
            },
            "status": {"phase": "Running" if node else "Pending"},
        }
    )


def held(mib: int = 3232, uuid: str = "GPU-1") -> dict[str, str]:
    share = msgspec.to_builtins(GpuShare(uuid, 0, mib, 3, 15))
    record = {"version": 1, "unit": "1GiB", "gpus": [share], "containers": {"c": [share]}}
    return {names.ANN_SHARE: json.dumps(record)}


def agent_pod(node: str = "n1") -> Json:
    return {
        "metadata": {
            "name": f"agent-{node}",
            "namespace": "kube-system",
            "ownerReferences": [{"name": names.DAEMON_SET_NAME}],
        },
        "spec": {"nodeName": node, "containers": []},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }


def scheduler_pod() -> Json:
    ports = [{"name": "health", "containerPort": 9452}, {"name": "probes", "containerPort": 9454}]
    return {
        "metadata": {
            "name": "ack-co-scheduler-1",
            "namespace": "kube-system",
            "labels": {"app.kubernetes.io/name": names.SCHEDULER_NAME},
        },
        "spec": {"containers": [{"name": "kube-scheduler"}, {"name": "extender", "ports": ports}]},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }


def endpoints(service: str, *ready: bool | None) -> Json:
    """An EndpointSlice; ``None``: an endpoint without readiness."""
    conditions_of_endpoints = [{} if one is None else {"ready": one} for one in ready]
    return {
        "metadata": {
            "name": f"{service}-abc",
            "namespace": "kube-system",
            "labels": {"kubernetes.io/service-name": service},
        },
        "endpoints": [
            {"addresses": [f"10.0.0.{at}"], "conditions": one}
            for at, one in enumerate(conditions_of_endpoints)
        ],
    }


def sound(**changes: Any) -> ClusterFacts:
    """Facts that pass every check, with these changes."""
    (deployment,) = [one for one in objects("Deployment") if one["metadata"]["name"] == names.SCHEDULER_NAME]
    deployment["status"] = {"readyReplicas": deployment["spec"]["replicas"]}
    (lease,) = objects("Lease")
    lease["spec"] = {"holderIdentity": "pod-1", "renewTime": ago(1)}
    definitions = objects("CustomResourceDefinition")
    for one in definitions:
        one["status"] = {"conditions": [{"type": "Established", "status": "True"}]}
    bindings = objects("ValidatingAdmissionPolicyBinding") + objects("MutatingAdmissionPolicyBinding")
    facts: dict[str, Any] = {
        "server": "https://s",
        "version": {"gitVersion": "v1.36.2"},
        "server_time_s": NOW_S,
        "our_time_s": NOW_S,
        "rights": {right_name(one): True for one in READS},
        "nodes": [node_of()],
        "pods": [gpu_pod("a", annotations=held())],
        "daemon_sets": objects("DaemonSet"),
        "deployments": [deployment],
        "config_maps": objects("ConfigMap"),
        "leases": [lease],
        "part_pods": [agent_pod(), scheduler_pod()],
        "roles": objects("ClusterRole"),
        "bindings": objects("ClusterRoleBinding"),
        "definitions": definitions,
        "own_roles": objects("Role"),
        "own_bindings": objects("RoleBinding"),
        "network_policies": [],
        "policies": [],
        "policy_pods": [],
        "quota_trees": [],
        "namespaces": frozenset(("default", "kube-system")),
        "owners": [],
        "validating_policies": objects("ValidatingAdmissionPolicy"),
        "mutating_policies": objects("MutatingAdmissionPolicy"),
        "policy_bindings": bindings,
        "webhooks": [],
        "webhook_deployments": [],
        "dashboards": [],
        "endpoint_slices": [endpoints(names.SCHEDULER_NAME, True, True)],
        "node_leases": {"n1": NOW_S - 3},
        "answers": {"kube-system/ack-co-scheduler-1": ""},
    }
    return ClusterFacts(**{**facts, **changes})
