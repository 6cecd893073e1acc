"""The dashboard, where the chart has switched it on."""

from typing import Any

from gpushare.doctor.cluster_checks import CHECKS
from gpushare.doctor.cluster_facts import ClusterFacts, Json, name_of
from gpushare.doctor.findings import Finding, Unread, examine
from tests.unit.doctor.sound import agent_pod, endpoints, rendered, scheduler_pod, sound


def with_dashboard(*, behind: bool = True, status: Json | None = None, **changes: Any) -> ClusterFacts:
    (deployment,) = rendered("scheduler-dashboard.yaml", "Deployment")
    deployment["status"] = {"readyReplicas": deployment["spec"]["replicas"]}
    pod = scheduler_pod()
    pod["status"]["containerStatuses"] = [{"name": "dashboard", "ready": True, **(status or {})}]
    facts = {
        "deployments": [deployment],
        "config_maps": rendered("scheduler-dashboard.yaml", "ConfigMap"),
        "part_pods": [agent_pod(), pod],
        "endpoint_slices": [endpoints("ack-co-scheduler", True), endpoints("gpushare-dashboard", behind)],
    }
    return sound(**{**facts, **changes})


def told(facts: ClusterFacts) -> list[Finding]:
    return [one for one in examine(facts, CHECKS) if one.check == "dashboard"]


def test_where_it_is_switched_off_or_runs_all_is_well() -> None:
    assert [one.state for one in told(sound())] == ["ok"]
    assert [one.state for one in told(with_dashboard())] == ["ok"]


def test_one_that_does_not_run_is_named_with_its_reason_and_how_its_token_is_made() -> None:
    state = {"ready": False, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    (found,) = told(with_dashboard(status=state, behind=False))
    assert (found.state, found.subject) == ("warning", "pod kube-system/ack-co-scheduler-1")
    assert found.says == "its dashboard does not run, or is not ready: CrashLoopBackOff"
    assert "`kubectl -n kube-system logs ack-co-scheduler-1 -c dashboard`" in found.remedy
    assert "create secret generic " in found.remedy


def test_a_service_with_nobody_behind_it_is_named() -> None:
    (found,) = told(with_dashboard(behind=False))
    assert (found.state, found.subject) == ("warning", "service kube-system/gpushare-dashboard")


def test_of_what_cannot_be_read_it_is_not_said_that_all_is_well() -> None:
    refused = Unread("endpointslices is forbidden", refused=True)
    assert [one.state for one in told(with_dashboard(endpoint_slices=refused))] == ["unknown"]
    assert [one.state for one in told(with_dashboard(part_pods=refused))] == ["unknown"]


def test_its_token_is_looked_for_by_the_name_that_the_chart_was_given() -> None:
    facts = with_dashboard(status={"ready": False})
    assert not isinstance(facts.deployments, Unread)
    (deployment,) = facts.deployments
    volumes = deployment["spec"]["template"]["spec"]["volumes"]
    next(one for one in volumes if one["name"] == "dashboard-token")["secret"]["secretName"] = "mine"
    (found,) = told(facts)
    assert "secret generic mine " in found.remedy
    assert name_of(deployment) == "kube-system/ack-co-scheduler"
