"""The doctor names agents and schedulers that still run a version from before a change."""

from typing import Any

import pytest

from gpushare.api import names
from gpushare.doctor.cluster.facts import ClusterFacts, Json
from gpushare.doctor.cluster.registry import CHECKS
from gpushare.doctor.findings import examine
from tests.unit.doctor.healthy_cluster import agent_pod, ago, objects, scheduler_pod, sound
from tests.unit.doctor.test_cluster_checks import deployment_with


def problems(facts: ClusterFacts) -> list[tuple[str, str, str]]:
    findings = [one for one in examine(facts, CHECKS) if one.check == "rollout" and one.state != "ok"]
    assert all(one.suggestion for one in findings)
    return [(one.state, one.subject, one.message) for one in findings]


def daemon_set(generation: int = 2, **status: int) -> list[Json]:
    (made,) = objects("DaemonSet")
    made["metadata"]["generation"] = generation
    made["status"] = {"observedGeneration": 2, "desiredNumberScheduled": 3, **status}
    return [made]


SUBJECT = "daemonset kube-system/gpushare-device-plugin-ds"


def test_a_daemon_set_whose_new_version_is_not_on_all_nodes_is_named() -> None:
    message = "its current version is on 1 of 3 nodes: the others still have earlier agents"
    assert problems(sound(daemon_sets=daemon_set(updatedNumberScheduled=1))) == [
        ("warning", SUBJECT, message)
    ]
    assert problems(sound(daemon_sets=daemon_set(updatedNumberScheduled=3))) == []


def test_a_daemon_set_whose_change_no_controller_has_processed_is_named() -> None:
    message = "it was changed, but no controller has processed the change yet"
    late = daemon_set(3, updatedNumberScheduled=3)
    assert problems(sound(daemon_sets=late)) == [("warning", SUBJECT, message)]


def rolling(updated: int, running: int, generation: int = 1) -> list[Json]:
    """The scheduler's Deployment, of two pods, during a roll-out."""
    (made,) = deployment_with(2)
    made["metadata"]["generation"] = generation
    made["status"] |= {"observedGeneration": 1, "updatedReplicas": updated, "replicas": running}
    return [made]


DEPLOYMENT = "deployment kube-system/ack-co-scheduler"


@pytest.mark.parametrize(("updated", "running"), [(0, 2), (1, 3), (1, 2), (2, 3)])
def test_a_deployment_that_still_has_old_pods_is_named(updated: int, running: int) -> None:
    message = f"its current version is in {updated} of 2 pods, and {running - updated} earlier ones still run"
    assert problems(sound(deployments=rolling(updated, running))) == [("warning", DEPLOYMENT, message)]


def test_the_new_pod_that_blocks_a_roll_out_is_reported_with_its_reason() -> None:
    pod = scheduler_pod()
    waiting = {"name": "extender", "state": {"waiting": {"reason": "ErrImagePull"}}}
    pod["status"] = {"conditions": [], "containerStatuses": [waiting]}
    ((_, _, message),) = problems(
        sound(deployments=rolling(1, 3), part_pods=[agent_pod(), scheduler_pod(), pod])
    )
    assert message.endswith(": ErrImagePull")


def test_a_deployment_that_is_rolled_out_or_was_never_created_is_skipped() -> None:
    assert problems(sound(deployments=rolling(2, 2))) == []
    assert problems(sound(deployments=rolling(0, 0))) == []
    (found,) = problems(sound(deployments=rolling(2, 2, generation=2)))
    assert found[2] == "it was changed, but no controller has processed the change yet"


def configured(text: str = "", changed_s: float | None = None) -> list[Json]:
    """The ConfigMap as the chart writes it, with ``text`` added by hand."""
    (made,) = objects("ConfigMap")
    made["data"]["config.yaml"] += text
    if changed_s is not None:
        made["metadata"]["managedFields"] = [{"time": ago(9000)}, {"time": ago(changed_s)}, {"manager": "x"}]
    return [made]


def started(seconds_ago: float | None) -> list[Json]:
    """The pods of both charts: the scheduler's from its chart's template, with its kube-scheduler started this long ago."""
    (template,) = [
        one["spec"]["template"]
        for one in objects("Deployment")
        if one["metadata"]["name"] == names.SCHEDULER_NAME
    ]
    pod = scheduler_pod()
    pod["metadata"]["annotations"] = template["metadata"]["annotations"]
    state: Any = {} if seconds_ago is None else {"running": {"startedAt": ago(seconds_ago)}}
    pod["status"]["containerStatuses"] = [{"name": "extender"}, {"name": "kube-scheduler", "state": state}]
    return [agent_pod(), pod]


@pytest.mark.parametrize(
    ("text", "changed_s", "started_s", "old"),
    [
        ("", 10, 100, False),  # of labels, not of its content
        ("# by hand\n", 10, 100, True),
        ("# by hand\n", 100, 10, False),
        ("# by hand\n", None, 10, True),
        ("# by hand\n", 10, None, True),
    ],
)
def test_a_scheduler_not_restarted_since_its_configuration_changed_is_named(
    text: str, changed_s: float | None, started_s: float | None, old: bool
) -> None:
    message = "it was changed after these pods read it, and they still use the previous version: kube-system/ack-co-scheduler-1"
    found = problems(sound(config_maps=configured(text, changed_s), part_pods=started(started_s)))
    assert found == ([("warning", "configmap kube-system/ack-co-scheduler", message)] if old else [])


def test_pods_with_unknown_configuration_are_skipped() -> None:
    assert problems(sound(config_maps=configured("# by hand\n", 10))) == []
