"""The dashboard, if enabled in the chart."""

from typing import Any

from gpushare.doctor.cluster.facts import ClusterFacts, Json, name_of
from gpushare.doctor.cluster.registry import CHECKS
from gpushare.doctor.findings import Finding, Unread, examine
from tests.unit.doctor.healthy_cluster import agent_pod, endpoints, rendered, scheduler_pod, sound


def with_dashboard(*, behind: bool = True, status: Json | None = None, **changes: Any) -> ClusterFacts:
    (deployment,) = [
        one
        for one in rendered("scheduler-dashboard.yaml", "Deployment")
        if one["metadata"]["name"] == "gpushare-dashboard"
    ]
    pod = {
        "metadata": {"name": "gpushare-dashboard-1", "namespace": "kube-system"},
        "status": {"containerStatuses": [{"name": "dashboard", "ready": True, **(status or {})}]},
    }
    facts = {
        "dashboards": [deployment],
        "part_pods": [agent_pod(), scheduler_pod(), pod],
        "endpoint_slices": [
            endpoints("ack-co-scheduler", True, True),
            endpoints("gpushare-dashboard", behind),
        ],
    }
    return sound(**{**facts, **changes})


def findings_of(facts: ClusterFacts) -> list[Finding]:
    return [one for one in examine(facts, CHECKS) if one.check == "dashboard"]


def test_a_disabled_or_running_dashboard_is_ok() -> None:
    assert [one.state for one in findings_of(sound())] == ["ok"]
    assert [one.state for one in findings_of(with_dashboard())] == ["ok"]


def test_a_dashboard_that_does_not_run_is_named_with_its_reason_and_how_to_create_its_token() -> None:
    state = {"ready": False, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    (found,) = findings_of(with_dashboard(status=state, behind=False))
    assert (found.state, found.subject) == ("warning", "pod kube-system/gpushare-dashboard-1")
    assert found.message == "it does not run or is not ready: CrashLoopBackOff"
    assert "`kubectl -n kube-system logs gpushare-dashboard-1 -c dashboard`" in found.suggestion
    assert "create secret generic " in found.suggestion


def test_its_account_needs_its_own_rights() -> None:
    made = with_dashboard(
        roles=rendered("scheduler-dashboard.yaml", "ClusterRole"),
        bindings=rendered("scheduler-dashboard.yaml", "ClusterRoleBinding"),
        own_roles=rendered("scheduler-dashboard.yaml", "Role"),
        own_bindings=rendered("scheduler-dashboard.yaml", "RoleBinding"),
        daemon_sets=[],
    )
    assert not [one for one in rights(made) if "dashboard" in f"{one.subject} {one.message}"]
    assert [one for one in rights(with_dashboard()) if "gpushare-dashboard" in f"{one.subject} {one.message}"]


def rights(facts: ClusterFacts) -> list[Finding]:
    return [one for one in examine(facts, CHECKS) if one.check == "process-rights"]


def test_a_service_without_endpoints_is_reported() -> None:
    (found,) = findings_of(with_dashboard(behind=False))
    assert (found.state, found.subject) == ("warning", "service kube-system/gpushare-dashboard")


def test_unreadable_objects_are_not_reported_as_ok() -> None:
    refused = Unread("endpointslices is forbidden", refused=True)
    assert [one.state for one in findings_of(with_dashboard(endpoint_slices=refused))] == ["unknown"]
    assert [one.state for one in findings_of(with_dashboard(part_pods=refused))] == ["unknown"]


def test_its_token_is_searched_by_the_name_set_in_the_chart() -> None:
    facts = with_dashboard(status={"ready": False})
    assert not isinstance(facts.dashboards, Unread)
    (deployment,) = facts.dashboards
    volumes = deployment["spec"]["template"]["spec"]["volumes"]
    next(one for one in volumes if one["name"] == "dashboard-token")["secret"]["secretName"] = "mine"
    (found,) = findings_of(facts)
    assert "secret generic mine " in found.suggestion
    assert name_of(deployment) == "kube-system/gpushare-dashboard"
