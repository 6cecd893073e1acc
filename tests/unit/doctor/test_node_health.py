"""Findings about GPUs and drivers out of service: each cause once, with what to do."""

import msgspec
import pytest

from gpushare.api.node.device import Device
from gpushare.doctor.cluster.facts import SeenNode
from gpushare.doctor.cluster.registry import CHECKS
from gpushare.doctor.findings import examine
from tests.unit.doctor.healthy_cluster import node_of, scheduler_pod, sound

LOST = Device(0, "GPU-1", 16160, healthy=False, reason="XID 79")


def not_sharing(reason: str, *gpus: Device, described: bool = True) -> SeenNode:
    """A node whose agent reports that it shares nothing, with this reason."""
    ready = {"type": "GPUShareReady", "status": "False", "reason": reason, "message": "m"}
    return node_of(
        gpus=gpus,
        allocatable={},
        conditions=[{"type": "Ready", "status": "True"}, ready],
        **({} if described else {"annotations": {}}),
    )


@pytest.mark.parametrize(
    ("reason", "suggestion"),
    [
        ("DriverFailed", "`nvidia-smi` as root on the node"),
        ("DriverNotFound", "install the driver on the node, or name its directory: `helm upgrade "),
        ("NoGPU", "`kubectl describe node n1`"),
    ],
)
@pytest.mark.parametrize("described", [True, False])
def test_a_driver_fault_is_one_finding_without_a_suggested_reset(
    reason: str, suggestion: str, described: bool
) -> None:
    gpus = (msgspec.structs.replace(LOST, reason="Driver Not Loaded"),) if reason != "NoGPU" else ()
    node = not_sharing(reason, *gpus, described=described)
    (finding,) = [one for one in examine(sound(nodes=[node]), CHECKS) if one.state != "ok"]
    assert (finding.check, finding.state, finding.message) == (
        "node-health",
        "fault",
        "GPUShareReady is False: m",
    )
    assert finding.suggestion.startswith(suggestion)
    assert "reset" not in finding.suggestion
    assert "exec agent-n1 -- gpushare doctor node" in finding.suggestion


def test_a_gpu_that_waits_for_its_pod_is_reported_and_no_fault() -> None:
    why = "held whole by pod default/whole until it ends"
    held = Device(0, "GPU-1", 16160, healthy=False, reason=why, kept_back=True)
    findings = examine(sound(nodes=[node_of(gpus=(held,), allocatable={})]), CHECKS)
    assert [one for one in findings if one.state != "ok"] == []
    assert [one.message for one in findings if one.check == "node-health"] == [
        f"node n1: GPU 0 (GPU-1) is {why}"
    ]


@pytest.mark.parametrize(
    "node", [not_sharing("DriverFailed", LOST), not_sharing("NoGPU"), node_of(gpus=(), allocatable={})]
)
def test_no_command_in_an_agents_pod_is_suggested_without_such_a_pod(node: SeenNode) -> None:
    facts = sound(nodes=[node], part_pods=[scheduler_pod()], playground={})
    (finding,) = [one for one in examine(facts, CHECKS) if one.state == "fault"]
    assert "on the node" in finding.suggestion or "kubectl describe node" in finding.suggestion
    assert "exec" not in finding.suggestion
    assert "helm" not in finding.suggestion


def test_a_cordoned_node_is_reported_with_the_uncordon_command_and_no_fault() -> None:
    taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    findings = examine(sound(nodes=[node_of(taints=[taint])]), CHECKS)
    assert [one for one in findings if one.state != "ok"] == []
    assert [one.message for one in findings if one.check == "node-health"] == [
        "node n1 is cordoned: no new pods are placed there until `kubectl uncordon n1`"
    ]


def test_draining_a_node_with_lost_gpus_is_followed_by_uncordon() -> None:
    findings = examine(sound(nodes=[node_of(gpus=(LOST,), allocatable={})]), CHECKS)
    (finding,) = [one for one in findings if "out of service" in one.message]
    drain, uncordon = (
        finding.suggestion.index(one) for one in ("`kubectl drain n1 ", "then `kubectl uncordon n1`")
    )
    assert drain < uncordon


def test_memory_used_without_an_allocation_is_a_warning_that_names_the_user() -> None:
    gpus = (
        Device(0, "GPU-1", 16160, foreign_mib=9024, foreign_by="process 4711 (in no pod)"),
        Device(1, "GPU-2", 16160),
    )
    facts = sound(nodes=[node_of(gpus=gpus, allocatable={"aliyun.com/gpu-mem": "30"})])
    (finding,) = [one for one in examine(facts, CHECKS) if one.state != "ok"]
    assert (finding.state, finding.subject, finding.message) == (
        "warning",
        "node n1",
        "9024 MiB of GPU 0 are used without an allocation by process 4711 (in no pod), and are not allocated to pods",
    )
    assert "`kubectl describe node n1`" in finding.suggestion
    assert "`nvidia-smi -r -i 0`" in finding.suggestion


def test_a_mig_instance_is_reset_with_its_gpu() -> None:
    gpus = (
        Device(20, "MIG-1", 9728, healthy=False, reason="XID 79"),
        Device(27, "MIG-2", 9728, foreign_mib=100),
    )
    facts = sound(nodes=[node_of(gpus=gpus, allocatable={"aliyun.com/gpu-mem": "9"})])
    resets = [one.suggestion for one in examine(facts, CHECKS) if "nvidia-smi -r" in one.suggestion]
    assert len(resets) == 2
    for gpu, text in enumerate(resets):
        assert f"reset GPU {gpu} once no instance of it is in use (`nvidia-smi -r -i {gpu}`)" in text
