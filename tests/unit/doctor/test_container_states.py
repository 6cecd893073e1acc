"""Pods that do not start: the kubelet's text, the command that shows more, the image that is missing; and a leader without its extender."""

from typing import Any

import pytest

from gpushare.doctor.cluster.checks.container_states import shortened
from gpushare.doctor.cluster.facts import ClusterFacts, Json
from gpushare.doctor.cluster.registry import CHECKS
from gpushare.doctor.findings import Finding, examine
from tests.unit.doctor.healthy_cluster import agent_pod, scheduler_pod, sound
from tests.unit.doctor.test_cluster_checks import deployment_with, lease

IMAGE = "docker.io/gpushare/gpushare:0.1.0"
PULLS = {
    "waiting": {
        "reason": "ImagePullBackOff",
        "message": f'Back-off pulling image "{IMAGE}": ErrImagePull: rpc error: code = NotFound desc = failed to pull and unpack image "{IMAGE}": '
        f'failed to resolve reference "{IMAGE}": failed to do request: Head "https://registry-1.docker.io/v2/gpushare/gpushare/manifests/0.1.0": '
        "dial tcp: lookup registry-1.docker.io: no such host",
    }
}
FIRST = "kube-system/ack-co-scheduler-1"
NO_ENDPOINTS = "no endpoints available"
DELETE = "`kubectl -n kube-system delete pod ack-co-scheduler-1`: then a ready one becomes leader; first "
DESCRIBE = "`kubectl -n kube-system describe pod ack-co-scheduler-1`"
LOG = "`kubectl -n kube-system logs ack-co-scheduler-1 -c extender`"


def unready(pod: Json, container: str, state: Json, **status: Any) -> Json:
    one = {"name": container, "image": IMAGE, "ready": False, "state": state, **status}
    pod["status"] = {"conditions": [], "containerStatuses": [one]}
    pod["spec"]["nodeName"] = "n1"
    return pod


def other() -> Json:
    pod = scheduler_pod()
    pod["metadata"]["name"] = "ack-co-scheduler-2"
    return pod


def led(holder: str, first: Json, *others: Json, answer: str = NO_ENDPOINTS) -> list[Finding]:
    """Findings about the extender of the first of these pods."""
    facts = sound(
        leases=lease(holderIdentity=holder), part_pods=[agent_pod(), first, *others], answers={FIRST: answer}
    )
    return [one for one in bad(facts) if one.subject == FIRST]


def bad(facts: ClusterFacts) -> list[Finding]:
    return [one for one in examine(facts, CHECKS) if one.state != "ok"]


@pytest.mark.parametrize("answer", [NO_ENDPOINTS, "?forbidden"])
def test_a_leader_without_its_extender_is_reported_with_the_pod_to_delete(answer: str) -> None:
    first = unready(scheduler_pod(), "extender", PULLS)
    (found,) = led("ack-co-scheduler-1_4b9e", first, other(), answer=answer)
    assert found.state == "fault"
    assert found.message.endswith("; it leads, so no pods are placed")
    assert found.suggestion == f"{DELETE}{DESCRIBE} says why"


def test_a_standby_or_single_pod_is_not_deleted() -> None:
    first = unready(scheduler_pod(), "extender", PULLS)
    (idle,) = led("ack-co-scheduler-2_4b9e", first, other())
    assert (idle.message, idle.suggestion) == (
        f"its extender is not ready: {NO_ENDPOINTS}",
        f"{DESCRIBE} says why",
    )
    (alone,) = led("ack-co-scheduler-1_4b9e", first)
    assert alone.message.endswith("; it leads, so no pods are placed")
    assert alone.suggestion == f"{DESCRIBE} says why"


@pytest.mark.parametrize(
    ("state", "status", "command"),
    [
        (PULLS, {}, DESCRIBE),
        ({"waiting": {"reason": "ContainerCreating"}}, {}, DESCRIBE),
        ({"waiting": {"reason": "CrashLoopBackOff"}}, {}, LOG),
        ({"waiting": {"reason": "PodInitializing"}}, {"lastState": {"terminated": {"exitCode": 2}}}, LOG),
        ({"running": {}}, {}, LOG),
    ],
)
def test_a_log_is_named_if_there_is_one(state: Json, status: Json, command: str) -> None:
    (found,) = led("other_1", unready(scheduler_pod(), "extender", state, **status))
    assert found.suggestion == f"{command} says why"


def test_a_pod_that_is_not_scheduled_is_described() -> None:
    pod = agent_pod()
    pod["status"] = {"phase": "Pending"}
    (found,) = bad(sound(part_pods=[pod, scheduler_pod()]))
    assert found.suggestion == "`kubectl -n kube-system describe pod agent-n1`"


def test_an_image_that_cannot_be_pulled_is_named_with_the_node_and_the_value() -> None:
    (agent,) = bad(sound(part_pods=[unready(agent_pod(), "agent", PULLS), scheduler_pod()]))
    assert (agent.check, agent.subject) == ("node-agents", "node n1")
    assert agent.suggestion == (
        f"`kubectl -n kube-system describe pod agent-n1`; import the image {IMAGE} on node n1, or name a registry that has it: "
        "`helm upgrade ack-ai-installer charts/ack-ai-installer -n kube-system --reuse-values --set image.repository=REGISTRY/gpushare`"
    )
    for container, value in (
        ("extender", "image.repository=REGISTRY/gpushare"),
        ("kube-scheduler", "kubeScheduler.image.repository=REGISTRY/kube-scheduler"),
    ):
        pod = unready(scheduler_pod(), container, PULLS)
        (found,) = bad(sound(deployments=deployment_with(1), part_pods=[agent_pod(), pod]))
        assert found.subject == "deployment kube-system/ack-co-scheduler"
        assert f"--set {value}`" in found.suggestion


def test_a_kubelets_text_is_cut_between_words() -> None:
    text = shortened(PULLS["waiting"]["message"])
    assert text.endswith("failed to do request: Head …")
    assert len(text) <= 302
    assert shortened("as \n it is") == "as it is"
