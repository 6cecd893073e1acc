"""A healthy cluster has no findings, and each fault has exactly its own."""

import base64
import datetime
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gpushare.api import names
from gpushare.api.node.device import Device
from gpushare.api.node.modes import NodeMode
from gpushare.api.objects import decode_pod
from gpushare.doctor.cluster.facts import ClusterFacts, Json, SeenNode, name_of
from gpushare.doctor.cluster.registry import CHECKS
from gpushare.doctor.findings import Unread, catalogue, examine, exit_code
from gpushare.doctor.node.checks import CHECKS as NODE_CHECKS
from tests.unit.doctor.healthy_cluster import (
    NOW_S,
    agent_pod,
    ago,
    endpoints,
    gpu_pod,
    held,
    node_of,
    objects,
    scheduler_pod,
    sound,
)

GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "doctor.md"
AWAY = Unread("it may not be read")
# : Field of the facts → the checks that are unknown without it.
NEEDED = {
    "nodes": ("versions", "clocks", "node-agents", "taints", "policy-units", "node-labels", "node-devices", "node-capacity", "node-health", "other-plugins", "claims", "pod-records", "pod-shares", "waiting-pods", "gangs"),
    "slices": ("claims",),
    "device_classes": ("claims",),
    "policy_pods": ("policy-pods",),
    "quota_trees": ("elastic-quotas",),
    "namespaces": ("elastic-quotas",),
    "owners": ("gangs",),
    "pods": ("pod-records", "pod-shares", "waiting-pods", "gangs"),
    "part_pods": ("one-scheduler", "node-agents", "rollout", "scheduler"),
    "daemon_sets": ("versions", "installation", "one-scheduler", "node-agents", "rollout", "taints", "process-rights", "admission"),
    "deployments": ("versions", "installation", "one-scheduler", "rollout", "scheduler", "scheduler-config", "process-rights"),
    "dashboards": ("process-rights", "dashboard"),
    "config_maps": ("installation", "rollout", "scheduler-config"),
    "leases": ("clocks", "installation", "scheduler"),
    "node_leases": ("clocks",),
    "roles": ("process-rights",),
    "bindings": ("process-rights",),
    "definitions": ("definitions",),
    "policies": ("policy-units", "policy-pods"),
    "webhooks": ("admission", "certificate"),
    "webhook_deployments": ("process-rights", "admission"),
    "endpoint_slices": ("scheduler", "admission"),
    "own_roles": ("process-rights",),
    "own_bindings": ("process-rights",),
    "network_policies": ("admission",),
    "validating_policies": ("admission",),
    "policy_bindings": ("admission",),
    "mutating_policies": ("admission",),
}  # fmt: skip


def isolating(text: str) -> SeenNode:
    """A node in mode cgpu whose agent reports this text about isolation."""
    node = node_of(mode=NodeMode.CGPU)
    assert node.node.metadata.annotations is not None
    node.node.metadata.annotations[names.ANN_ISOLATION] = text
    return node


def problems(facts: ClusterFacts) -> list[tuple[str, str, str]]:
    return [(one.check, one.state, one.subject) for one in examine(facts, CHECKS) if one.state != "ok"]


def changed(facts: ClusterFacts, field: str, change: Callable[[Any], Any]) -> ClusterFacts:
    """The facts with one object of a list changed in place."""
    change(getattr(facts, field))
    return facts


def test_every_check_passes_in_a_healthy_cluster() -> None:
    findings = examine(sound(), CHECKS)
    assert [one for one in findings if one.state != "ok"] == []
    assert [one.check for one in findings] == [one.name for one in CHECKS]
    assert exit_code(findings) == 0


def bundle(days: float) -> Json:
    """A configuration whose CA expires after this many days."""
    now = datetime.datetime.fromtimestamp(NOW_S, datetime.UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=30))
        .not_valid_after(now + datetime.timedelta(days=days))
        .sign(key, hashes.SHA256())
    )
    from cryptography.hazmat.primitives.serialization import Encoding

    return hook(base64.b64encode(made.public_bytes(Encoding.PEM)).decode())


def hook(ca: str, *names_of: str) -> Json:
    named = names_of or ("requests.gpushare.dev", "scheduler-name.gpushare.dev")
    return {"webhooks": [{"name": name, "clientConfig": {"caBundle": ca}} for name in named[:1]]}


def without(found: list[Json], name: str) -> list[Json]:
    return [one for one in found if one["metadata"]["name"] != name]


def without_name(name: str) -> list[Json]:
    bindings = sound().policy_bindings
    assert not isinstance(bindings, Unread)
    assert name in map(name_of, bindings)
    return [one for one in bindings if name_of(one) != name]


def tainted(**taint: str) -> dict[str, Any]:
    (daemon_set,) = objects("DaemonSet")
    daemon_set["spec"]["template"]["spec"]["tolerations"] = [{"key": "x", "operator": "Exists"}]
    return {
        "daemon_sets": [daemon_set],
        "nodes": [node_of(taints=[{"key": "team", "value": "a", "effect": "NoSchedule", **taint}])],
    }


def crashing() -> Json:
    waiting = {"state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}}
    return {**agent_pod(), "status": {"conditions": [], "containerStatuses": [waiting]}}


def deployment_with(ready: int, *, image: str = "") -> list[Json]:
    (one,) = sound().deployments  # type: ignore[misc]
    one["status"]["readyReplicas"] = ready
    if image:
        one["spec"]["template"]["spec"]["containers"][0]["image"] = image
    return [one]


def config(old: str, new: str) -> list[Json]:
    (one,) = objects("ConfigMap")
    assert old in one["data"]["config.yaml"]
    one["data"]["config.yaml"] = one["data"]["config.yaml"].replace(old, new)
    return [one]


def lease(**spec: Any) -> list[Json]:
    (one,) = sound().leases  # type: ignore[misc]
    one["spec"].update(spec)
    return [one]


def role_without(name: str, resource: str) -> list[Json]:
    found = objects("ClusterRole")
    for one in found:
        if one["metadata"]["name"] == name:
            one["rules"] = [rule for rule in one["rules"] if resource not in rule["resources"]]
    return found


def policies(**status: Any) -> list[Json]:
    found = objects("ValidatingAdmissionPolicy")
    found[0]["status"] = status
    return found


def established(value: str) -> list[Json]:
    found = sound().definitions
    assert not isinstance(found, Unread)
    found[0]["status"]["conditions"][0]["status"] = value
    return found


def waiting(scheduler: str, labelled: dict[str, str] | None = None, **limits: str) -> Any:
    return decode_pod(
        {
            "metadata": {"name": "w", "namespace": "default", "uid": "u-w", "labels": labelled or {}},
            "spec": {
                "schedulerName": scheduler,
                "containers": [{"name": "c", "resources": {"limits": limits or {names.GPU_MEM: "3"}}}],
            },
        }
    )


def bound_with(*actions: str, name: str = "gpushare-requests") -> list[Json]:
    """The bindings, that of one policy with these ``validationActions``."""
    found = sound().policy_bindings
    assert not isinstance(found, Unread)
    (one,) = [one for one in found if name_of(one) == name]
    one["spec"] = {"validationActions": list(actions)}
    return found


def policy(*units: Json) -> Json:
    units_read = [{"resource": "ecs", **one} for one in units]
    return {"metadata": {"name": "p", "namespace": "default"}, "spec": {"units": units_read}}


def wanting(mode: str) -> Any:
    pod = waiting("ack-co-scheduler")
    pod.spec.node_selector = {names.LABEL_MODE: mode}
    return pod


LOST = Device(0, "GPU-1", 16160, healthy=False, reason="XID 79")
FAULTS: list[Any] = [
    ("you may not read all", {"rights": {"list nodes": False, "list pods": True}}, ("permissions", "warning", "you")),
    ("rights are not known", {"rights": AWAY}, ("permissions", "unknown", "you")),
    ("a version of nothing", {"version": {}}, ("versions", "unknown", "API server"), ("admission", "unknown", "admission")),
    ("a kubelet that is newer", {"nodes": [node_of(kubelet="v1.37.0")]}, ("versions", "warning", "node n1")),
    ("a kubelet that is far behind", {"nodes": [node_of(kubelet="v1.32.0")]}, ("versions", "warning", "node n1")),
    ("a kube-scheduler of another version", {"deployments": deployment_with(2, image="x/kube-scheduler:v1.30.1")}, ("versions", "warning", "deployment kube-system/ack-co-scheduler")),
    ("our clock is ahead", {"our_time_s": NOW_S + 60}, ("clocks", "warning", "this machine")),
    ("our clock is behind", {"our_time_s": NOW_S - 60}, ("clocks", "warning", "this machine")),
    ("no time", {"server_time_s": AWAY}, ("clocks", "unknown", "API server")),
    ("Leases of kubelets that may not be read", {"node_leases": AWAY}, ("clocks", "unknown", "kubelets")),
    ("a node ahead", {"node_leases": {"n1": NOW_S + 30}}, ("clocks", "warning", "node n1")),
    ("a silent kubelet", {"node_leases": {"n1": NOW_S - 300, "others": 0.0}}, ("clocks", "fault", "node n1")),
    ("a leader ahead", {"leases": lease(renewTime=ago(-120))}, ("clocks", "warning", "lease kube-system/ack-co-scheduler")),
    ("no node agents' chart", {"daemon_sets": []}, ("versions", "unknown", ""), ("installation", "fault", "DaemonSet gpushare-device-plugin-ds"), *((one, "unknown", "") for one in ("one-scheduler", "node-agents", "rollout", "taints", "process-rights", "admission"))),
    ("workloads that may not be read", {"daemon_sets": AWAY}, ("versions", "unknown", ""), ("installation", "unknown", "DaemonSet gpushare-device-plugin-ds"), ("one-scheduler", "unknown", ""), ("node-agents", "unknown", ""), ("rollout", "unknown", ""), ("taints", "unknown", ""), ("process-rights", "unknown", ""), ("admission", "unknown", "")),
    ("no configuration", {"config_maps": []}, ("installation", "fault", "ConfigMap ack-co-scheduler"), ("scheduler-config", "unknown", "")),
    ("no Lease", {"leases": []}, ("installation", "fault", "Lease ack-co-scheduler")),
    ("two node agents", {"daemon_sets": objects("DaemonSet") * 2}, ("one-scheduler", "fault", "DaemonSet gpushare-device-plugin-ds")),
    ("no agent on a node", {"part_pods": [scheduler_pod()]}, ("node-agents", "fault", "node n1")),
    ("an agent that crashes", {"part_pods": [crashing(), scheduler_pod()]}, ("node-agents", "fault", "node n1")),
    ("an agent that is kept away", {**tainted(), "part_pods": [scheduler_pod()]}, ("taints", "fault", "node n1")),
    ("a taint of Kubernetes' own", {**tainted(key="node.kubernetes.io/unschedulable")}),
    ("a taint that only prefers", {**tainted(effect="PreferNoSchedule")}),
    ("a scheduler of which one pod is away", {"deployments": deployment_with(1)}, ("scheduler", "warning", "deployment kube-system/ack-co-scheduler")),
    ("no scheduler runs", {"deployments": deployment_with(0)}, ("scheduler", "fault", "deployment kube-system/ack-co-scheduler")),
    ("an extender that may not be asked", {"answers": {"p": "?forbidden"}}, ("scheduler", "unknown", "p")),
    ("an extender that is not ready", {"answers": {"p": "nodes not read yet"}}, ("scheduler", "fault", "p")),
    ("nobody leads", {"leases": lease(holderIdentity="")}, ("scheduler", "fault", "lease kube-system/ack-co-scheduler")),
    ("a leader that is silent", {"leases": lease(renewTime=ago(360))}, ("scheduler", "fault", "lease kube-system/ack-co-scheduler")),
    ("a Lease without a time", {"leases": lease(renewTime="never")}, ("scheduler", "fault", "lease kube-system/ack-co-scheduler")),
    ("another profile", {"config_maps": config("schedulerName: ack-co-scheduler", "schedulerName: mine")}, ("scheduler-config", "fault", "configmap kube-system/ack-co-scheduler")),
    ("no extender", {"config_maps": config("/gpushare", "/other")}, ("scheduler-config", "fault", "configmap kube-system/ack-co-scheduler")),
    ("no bind", {"config_maps": config("bindVerb: bind", "bindVerb: null")}, ("scheduler-config", "fault", "configmap kube-system/ack-co-scheduler")),
    ("nodes in full", {"config_maps": config("nodeCacheCapable: true", "nodeCacheCapable: false")}, ("scheduler-config", "fault", "configmap kube-system/ack-co-scheduler")),
    ("managed resources", {"config_maps": config("ignorable: false", "ignorable: false\n    managedResources: [{name: a}]")}, ("scheduler-config", "fault", "configmap kube-system/ack-co-scheduler")),
    ("another port", {"config_maps": config(":9451/", ":9999/")}, ("scheduler-config", "fault", "configmap kube-system/ack-co-scheduler")),
    ("no YAML", {"config_maps": config("profiles:", "profiles: [")}, ("scheduler-config", "fault", "configmap kube-system/ack-co-scheduler")),
    ("a configuration that may not be read", {"config_maps": AWAY}, ("installation", "unknown", "ConfigMap ack-co-scheduler"), ("rollout", "unknown", ""), ("scheduler-config", "unknown", "ConfigMap ack-co-scheduler")),
    ("no role", {"roles": without(objects("ClusterRole"), "ack-co-scheduler")}, ("process-rights", "fault", "clusterrole ack-co-scheduler")),
    ("a role without a right", {"roles": role_without("gpushare-device-plugin", "nodes/status")}, ("process-rights", "fault", "clusterrole gpushare-device-plugin")),
    ("no binding", {"bindings": without(objects("ClusterRoleBinding"), "ack-co-scheduler")}, ("process-rights", "fault", "clusterrolebinding ack-co-scheduler")),
    ("rights that may not be read", {"roles": AWAY}, ("process-rights", "unknown", "ClusterRoles")),
    ("bindings that may not be read", {"bindings": AWAY}, ("process-rights", "unknown", "ClusterRoles")),
    ("pointing that nothing binds", {"policy_bindings": without_name("gpushare-scheduler-name")}, ("admission", "fault", "policy gpushare-scheduler-name")),
    ("nobody points pods, requests are counted all the same", {"mutating_policies": without(objects("MutatingAdmissionPolicy"), "gpushare-scheduler-name")}, ("admission", "warning", "admission")),
    ("nobody behind the Service of the scheduler", {"endpoint_slices": [endpoints(names.SCHEDULER_NAME, False)]}, ("scheduler", "warning", "service kube-system/ack-co-scheduler")),
    ("no Service of the scheduler, whose pods are away", {"endpoint_slices": [], "deployments": deployment_with(0)}, ("scheduler", "fault", "deployment kube-system/ack-co-scheduler")),
    ("an agent that follows another", {"part_pods": [agent_pod(), {**crashing(), "metadata": {**agent_pod()["metadata"], "name": "agent-n1-next"}}, scheduler_pod()]}),
    ("no policies", {"validating_policies": []}, ("admission", "warning", "admission")),
    ("a policy that is gone", {"validating_policies": without(objects("ValidatingAdmissionPolicy"), "gpushare-records")}, ("admission", "fault", "policy gpushare-records")),
    ("no policy that writes into the audit log", {"validating_policies": without(objects("ValidatingAdmissionPolicy"), "gpushare-audit")}, ("admission", "warning", "policy gpushare-audit")),
    ("a policy that only audits", {"policy_bindings": bound_with("Audit")}, ("admission", "fault", "policy gpushare-requests")),
    ("a policy that only warns and audits", {"policy_bindings": bound_with("Warn", "Audit")}, ("admission", "fault", "policy gpushare-requests")),
    ("a policy that refuses and audits", {"policy_bindings": bound_with("Deny", "Audit")}),
    ("a policy that is to warn", {"policy_bindings": bound_with("Warn", name="gpushare-mistakes")}),
    ("a policy that is to write into the audit log", {"policy_bindings": bound_with("Audit", name="gpushare-audit")}),
    ("a policy that nothing binds", {"policy_bindings": without_name(objects("ValidatingAdmissionPolicyBinding")[0]["metadata"]["name"])}, ("admission", "fault", f"policy {objects('ValidatingAdmissionPolicyBinding')[0]['metadata']['name']}")),
    ("a policy that the API server does not understand", {"validating_policies": policies(typeChecking={"expressionWarnings": [{"fieldRef": "f", "warning": "w"}]})}, ("admission", "warning", f"policy {objects('ValidatingAdmissionPolicy')[0]['metadata']['name']}")),
    ("policies that may not be read", {"validating_policies": AWAY}, ("admission", "unknown", "ValidatingAdmissionPolicies")),
    ("nobody points pods", {"mutating_policies": []}, ("admission", "warning", "admission")),
    ("who points pods may not be read", {"mutating_policies": AWAY}, ("admission", "unknown", "MutatingAdmissionPolicies")),
    ("an older cluster without a webhook", {"version": {"gitVersion": "v1.29.1"}, "nodes": [node_of(kubelet="v1.29.1")], "deployments": deployment_with(2, image="k:v1.29.1")}, ("admission", "warning", "admission"), ("admission", "warning", "admission")),
    ("a cluster that is too old", {"version": {"gitVersion": "v1.27.1"}, "nodes": [node_of(kubelet="v1.27.1")], "deployments": deployment_with(2, image="k:v1.27.1"), "webhooks": [bundle(50), {"webhooks": []}, hook("", "scheduler-name.gpushare.dev")]}, ("versions", "fault", "API server"), ("certificate", "fault", "webhook scheduler-name.gpushare.dev")),
    ("webhooks that may not be read", {"webhooks": AWAY}, ("admission", "unknown", "admission"), ("certificate", "unknown", "webhook")),
    ("a certificate that has expired", {"webhooks": [bundle(-1)]}, ("certificate", "fault", "webhook requests.gpushare.dev")),
    ("a certificate that expires soon", {"webhooks": [bundle(2)]}, ("certificate", "warning", "webhook requests.gpushare.dev")),
    ("a certificate that is well", {"webhooks": [bundle(60)]}),
    ("no certificate", {"webhooks": [hook("!")]}, ("certificate", "fault", "webhook requests.gpushare.dev")),
    ("an empty certificate", {"webhooks": [hook("")]}, ("certificate", "fault", "webhook requests.gpushare.dev")),
    ("a kind that is gone", {"definitions": without(sound().definitions, "elasticquotatrees.scheduling.sigs.k8s.io")}, ("definitions", "fault", "crd elasticquotatrees.scheduling.sigs.k8s.io")),  # type: ignore[arg-type]
    ("a kind that is not served", {"definitions": established("False")}, ("definitions", "fault", "crd elasticquotatrees.scheduling.sigs.k8s.io")),
    ("kinds that may not be read", {"definitions": AWAY}, ("definitions", "unknown", "CustomResourceDefinitions")),
    ("a mode that is unknown", {"nodes": [node_of(labels={names.LABEL_MODE: "shared"})]}, ("node-labels", "fault", "node n1")),
    ("a label that nobody reads", {"nodes": [node_of(labels={names.LABEL_MODE: "share", "ack.node.gpu.shedule": "share"})]}, ("node-labels", "warning", "node n1")),
    ("a label of ours of no kind", {"nodes": [node_of(labels={names.LABEL_MODE: "share", "ack.node.gpu.x": "y"})]}, ("node-labels", "warning", "node n1")),
    ("a cordon of a GPU that is not there", {"nodes": [node_of(annotations={names.ANN_DEVICES: node_of().node.metadata.annotations[names.ANN_DEVICES], names.ANN_CORDONED: "7"})]}, ("node-labels", "warning", "node n1")),  # type: ignore[index]
    ("labels of others", {"nodes": [node_of(labels={names.LABEL_MODE: "share", "kubernetes.io/os": "linux"})]}),
    ("no description", {"nodes": [node_of(annotations={}, allocatable={})]}, ("node-devices", "fault", "node n1")),
    ("a broken description", {"nodes": [node_of(annotations={names.ANN_DEVICES: "{"})]}, ("node-devices", "fault", "node n1")),
    ("another mode", {"nodes": [node_of(labels={names.LABEL_MODE: "cgpu"})]}, ("node-devices", "fault", "node n1")),
    ("no GPU", {"nodes": [node_of(gpus=(), allocatable={})], "pods": []}, ("node-devices", "fault", "node n1")),
    ("a namespace that is not there", {"namespace": "foo", "namespace_is_there": False, "playground": {}}, ("installation", "fault", "namespace foo")),
    ("a kubelet that offers nothing", {"nodes": [node_of(allocatable={names.GPU_MEM: "0"})]}, ("node-capacity", "fault", "node n1")),
    ("a node of whole GPUs", {"nodes": [node_of(mode=NodeMode.TOPOLOGY, allocatable={names.GPU_WHOLE: "1"})]}),
    ("a node that gives compute", {"nodes": [node_of(mode=NodeMode.CORE_MEM, allocatable={names.GPU_MEM: "15", names.GPU_CORE: "90"})]}, ("node-capacity", "fault", "node n1")),
    ("a node that is away", {"nodes": [node_of(conditions=[{"type": "Ready", "status": "Unknown"}], allocatable={}, annotations={})]}, ("node-health", "fault", "node n1")),
    ("a node whose every GPU is out of service, and whose condition says so", {"nodes": [node_of(gpus=(LOST,), allocatable={}, conditions=[{"type": "Ready", "status": "True"}, {"type": "GPUShareReady", "status": "False", "reason": "GPUUnhealthy", "message": "m"}])]}, ("node-health", "fault", "node n1")),
    ("a GPU that is out of service beside a sound one", {"nodes": [node_of(gpus=(Device(0, "GPU-1", 16160), msgspec.structs.replace(LOST, index=1, uuid="GPU-2")), allocatable={names.GPU_MEM: "15"})]}, ("node-health", "warning", "node n1")),
    ("isolation that is asked for and not given", {"nodes": [isolating("none: mode cgpu asks for isolation, and this node cannot: no NVIDIA driver")]}, ("node-health", "warning", "node n1")),
    ("isolation that is switched off", {"nodes": [isolating("none: mode cgpu requires isolation, but --isolation none disables it")]}),
    ("isolation that is given", {"nodes": [isolating("preload: mode cgpu")]}),
    ("an agent that ended", {"nodes": [node_of(conditions=[{"type": "GPUShareReady", "status": "Unknown", "message": "m"}])]}, ("node-health", "fault", "node n1")),
    ("a condition", {"nodes": [node_of(conditions=[{"type": "Ready", "status": "True"}, {"type": "GPUShareReady", "status": "False", "message": "m"}])]}, ("node-health", "fault", "node n1")),
    ("a broken record", {"pods": [gpu_pod("a", annotations={names.ANN_SHARE: "{"})]}, ("pod-records", "fault", "pod default/a")),
    ("no record", {"pods": [gpu_pod("a")]}, ("pod-records", "fault", "pod default/a")),
    ("a GPU that is gone", {"pods": [gpu_pod("a", annotations=held(uuid="GPU-2"))]}, ("pod-records", "fault", "pod default/a")),
    ("a GPU that is given twice", {"pods": [gpu_pod("a", annotations=held(9000)), gpu_pod("b", annotations=held(9000))]}, ("pod-records", "fault", "node n1")),
    ("pods that may not be read", {"pods": AWAY}, ("pod-records", "unknown", ""), ("pod-shares", "unknown", ""), ("waiting-pods", "unknown", ""), ("gangs", "unknown", "")),
    ("another's pod", {"pods": [waiting("default-scheduler")]}, ("waiting-pods", "warning", "pod default/w")),
    ("a pod that can never be", {"pods": [waiting("ack-co-scheduler", **{names.GPU_CORE: "7"})]}, ("waiting-pods", "warning", "pod default/w")),
    ("a gang without a number", {"pods": [waiting("ack-co-scheduler", {names.LABEL_GANG_NAME: "g"})]}, ("waiting-pods", "warning", "pod default/w")),
    ("a resource that nobody offers", {"pods": [waiting("x", **{"aliyun.com/gpu-memory": "4"})]}, ("waiting-pods", "warning", "pod default/w")),
    ("a resource like no other", {"pods": [waiting("x", **{"gpushare.dev/x": "4"})]}, ("waiting-pods", "warning", "pod default/w")),
    ("a label that nobody reads", {"pods": [waiting("ack-co-scheduler", {names.LABEL_MODE: "share"})]}, ("waiting-pods", "warning", "pod default/w")),
    ("a node that there cannot be", {"pods": [wanting("core-mem")]}, ("waiting-pods", "warning", "pod default/w")),
    ("a node that there can be", {"pods": [wanting("cgpu")]}),
    ("a unit that has no node", {"policies": [policy({"nodeSelector": {names.LABEL_MODE: "share"}}, {"nodeSelector": {"pool": "a"}})]}, ("policy-units", "warning", "resourcepolicy default/p")),
    ("units that have nodes, or wait for some", {"policies": [policy({"nodeSelector": {names.LABEL_MODE: "share"}}, {"resource": "elastic", "nodeSelector": {"pool": "a"}}), {"spec": {}}]}),
    ("a resource in a domain that nobody has", {"pods": [waiting("x", **{"alyun.com/gpu-mem": "5"})]}, ("waiting-pods", "warning", "pod default/w")),
    ("half a gang", {"pods": [waiting("ack-co-scheduler", {names.LABEL_GANG_LEAST: "2"})]}, ("waiting-pods", "warning", "pod default/w")),
    ("more than any GPU has", {"pods": [waiting("ack-co-scheduler", **{names.GPU_MEM: "16"})]}, ("waiting-pods", "warning", "pod default/w")),
    ("more GPUs than a node has", {"pods": [waiting("ack-co-scheduler", {names.LABEL_POD_GPU_COUNT: "2"}, **{names.GPU_MEM: "4"})]}, ("waiting-pods", "warning", "pod default/w")),
    ("compute where none is given", {"pods": [waiting("ack-co-scheduler", **{names.GPU_MEM: "4", names.GPU_CORE: "10"})]}, ("waiting-pods", "warning", "pod default/w")),
    ("pods that wait well, or ask for nothing", {"pods": [waiting("ack-co-scheduler"), waiting("x", cpu="1"), gpu_pod("f", node="elsewhere", annotations=held())]}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "changes", "wanted"),
    [(one[0], one[1], list(one[2:])) for one in FAULTS],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_fault_is_named_and_nothing_else(
    name: str, changes: dict[str, Any], wanted: list[tuple[str, str, str]]
) -> None:
    findings = [one for one in examine(sound(**changes), CHECKS) if one.state != "ok"]
    assert [(one.check, one.state, one.subject) for one in findings] == wanted, findings
    assert all(one.message for one in findings)
    assert all(one.suggestion for one in findings if one.state in ("warning", "fault"))


def test_dependent_faults_are_reported_where_they_are_visible() -> None:
    """If nodes may not be read, nothing about them is guessed."""
    found = problems(sound(nodes=AWAY))
    messages = {"node-labels": "nodes"}
    assert found == [(one, "unknown", messages.get(one, "")) for one in NEEDED["nodes"]]
    assert problems(sound(part_pods=AWAY)) == [(one, "unknown", "") for one in NEEDED["part_pods"]]
    assert ("one-scheduler", "fault", "scheduler ack-co-scheduler") in problems(
        sound(deployments=deployment_with(2) * 2)
    )
    gone = problems(sound(daemon_sets=[], deployments=[], config_maps=[], leases=[], definitions=[]))
    assert [one for one in gone if one[1] != "unknown"] == [
        ("installation", "fault", "DaemonSet gpushare-device-plugin-ds"),
        ("installation", "fault", "Deployment ack-co-scheduler"),
        ("installation", "fault", "ConfigMap ack-co-scheduler"),
        ("installation", "fault", "Lease ack-co-scheduler"),
    ]


def test_a_scheduler_pod_that_does_not_start_is_reported_with_its_reason() -> None:
    broken = scheduler_pod()
    exited = {"lastState": {"terminated": {"exitCode": 2}}}
    broken["status"] = {"conditions": [], "containerStatuses": [exited]}
    (finding,) = [
        one for one in examine(sound(deployments=deployment_with(0), part_pods=[agent_pod(), broken]), CHECKS)
        if one.state == "fault"
    ]  # fmt: skip
    assert "exit code 2" in finding.message


def test_the_rights_in_the_code_are_those_of_the_charts() -> None:
    """Otherwise a healthy cluster would be reported to lack some."""
    assert problems(sound()) == []


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ({"nodeSelector": {"pool": "spott"}}, "none is labelled pool=spott; there is pool=spot"),
        ({"nodeSelector": {"pool": "x"}}, "none is labelled pool=x"),
        ({"nodeSelector": {"pol": "spot"}}, "none has label pol; there is pool"),
        ({"nodeSelector": {"zone": "spot"}}, "none has label zone"),
        (
            {"nodeSelector": {"pool": "spot", "size": "small"}},
            "no real node is labelled pool=spot,size=small",
        ),
        ({"resource": "eci"}, "there is no virtual node"),
    ],
)
def test_for_a_unit_without_nodes_the_wrong_label_is_named_with_the_intended_one(
    unit: Json, expected: str
) -> None:
    nodes = [
        node_of(labels={names.LABEL_MODE: "share", "pool": "spot", "size": "large"}),
        node_of("n2", labels={"pool": "fixed", "size": "small"}),
    ]
    found = examine(sound(nodes=nodes, policies=[policy(unit)]), CHECKS)
    assert [one.message for one in found if one.check == "policy-units"] == [
        f"unit 1 has no node: {expected}"
    ]


def test_the_guide_lists_the_checks_correctly() -> None:
    """``GPUSHARE_WRITE_GOLDEN=1`` writes them."""
    text = made = GUIDE.read_text()
    for title, checks in (("a cluster", CHECKS), ("a node", NODE_CHECKS)):
        before, begin, rest = made.partition(f"<!-- checks of {title} -->\n")
        _, end, after = rest.partition("\n<!-- end -->")
        assert end, f"{GUIDE.name} has no place for the checks of {title}"
        made = before + begin + catalogue(checks) + end + after
    if os.environ.get("GPUSHARE_WRITE_GOLDEN"):
        GUIDE.write_text(made)
    else:
        assert text == made, "the guide is old: GPUSHARE_WRITE_GOLDEN=1 pytest tests/unit/doctor"


@pytest.mark.parametrize("field", sorted(NEEDED))
def test_a_refused_kind_makes_no_check_ok_and_the_exit_code_nonzero(field: str) -> None:
    refused = Unread(f"{field} is forbidden: you cannot list it", refused=True)
    found = examine(sound(**{field: refused}), CHECKS)
    states = {one.name: {of.state for of in found if of.check == one.name} for one in CHECKS}
    assert {name: states[name] for name in NEEDED[field]} == {name: {"unknown"} for name in NEEDED[field]}
    assert all(
        any(refused.why in one.message for one in found if one.check == name) for name in NEEDED[field]
    )
    assert ("permissions", "warning") in {(one.check, one.state) for one in found}
    assert exit_code(found) == 1


def test_objects_that_a_playground_lacks_are_not_taken_for_refused() -> None:
    absent = Unread("404", absent=True)
    assert problems(sound(playground={}, roles=absent, bindings=absent, webhooks=absent, rights=absent)) == []


@pytest.mark.parametrize(
    ("labels", "limits", "why", "suggestion"),
    [
        (
            {},
            {names.GPU_MEM: "16"},
            "requests 16 GiB, but the largest GPU has 15 GiB",
            "a node with larger GPUs; or request less",
        ),
        (
            {names.LABEL_POD_GPU_COUNT: "2"},
            {names.GPU_MEM: "8"},
            "requests 2 GPUs, but the node has 1",
            "a node with 2 GPUs or more of the requested size; or request less",
        ),
        (
            {},
            {names.GPU_MEM: "4", names.GPU_CORE: "10"},
            "node offers no compute",
            "node n1 is in mode share: `kubectl label node n1 ack.node.gpu.schedule=core_mem --overwrite`",
        ),
        (
            {},
            {names.GPU_WHOLE: "1"},
            "node offers no whole GPUs",
            "node n1 is in mode share: `kubectl label node n1 ack.node.gpu.schedule=topology --overwrite`",
        ),
        (
            {},
            {names.GPU_MEM: "1Gi"},
            "requests 1073741824 GiB, but the largest GPU has 15 GiB "
            "(aliyun.com/gpu-mem is a number of units of 1 GiB, without Mi or Gi)",
            "write aliyun.com/gpu-mem as a number of units, without Mi or Gi",
        ),
        ({}, {names.GPU_MEM: "15"}, "", ""),
    ],
)
def test_a_pod_that_no_empty_node_could_take_is_reported_with_reason_and_suggestion(
    labels: dict[str, str], limits: dict[str, str], why: str, suggestion: str
) -> None:
    found = examine(sound(pods=[waiting("ack-co-scheduler", labels, **limits)]), CHECKS)
    head = "no node could run it even if empty: "
    hopeless = [one for one in found if one.message.startswith(head)]
    assert [one.message.startswith(head + why) for one in hopeless] == ([True] if why else []), hopeless
    assert [one.suggestion.startswith(suggestion) for one in hopeless] == ([True] if why else []), hopeless


def test_a_node_in_whole_gpu_mode_takes_pods_that_count_gpus() -> None:
    pods = [waiting("ack-co-scheduler", **{names.GPU_WHOLE: "1"})]
    nodes = [node_of(mode=NodeMode.TOPOLOGY, allocatable={names.GPU_WHOLE: "1"})]
    assert problems(sound(pods=pods, nodes=nodes)) == []
    assert {one[1] for one in problems(sound(pods=pods, nodes=[]))} == {"unknown"}, "no sizes are guessed"


def test_a_misspelt_resource_is_reported_with_the_correct_name() -> None:
    found = examine(sound(pods=[waiting("x", **{"aliyun.com/gpu-core": "30"})]), CHECKS)
    assert "write aliyun.com/gpu-core.percentage" in {one.suggestion for one in found}
