"""Pods that a ResourcePolicy selects and that another scheduler places are reported, with one of them as an example."""

from typing import Any

from gpushare.api import names
from gpushare.api.objects import Pod, decode_pod
from gpushare.doctor.cluster.facts import Json
from gpushare.doctor.cluster.registry import CHECKS
from gpushare.doctor.findings import examine
from tests.unit.doctor.healthy_cluster import sound


def pod(
    name: str,
    scheduler: str = "default-scheduler",
    app: str = "nginx",
    *,
    owner: str = "",
    phase: str = "Running",
) -> Pod:
    meta = {"name": name, "namespace": "default", "labels": {"app": app}}
    owners = [{"kind": owner, "name": "o", "uid": "u", "controller": True}] if owner else []
    return decode_pod(
        {
            "metadata": {**meta, "ownerReferences": owners},
            "spec": {"schedulerName": scheduler, "nodeName": "n1", "containers": []},
            "status": {"phase": phase},
        }
    )


def policy(name: str = "p", namespace: str = "default", selector: Json | None = None, **unit: Any) -> Json:
    meta = {"name": name, "namespace": namespace, "creationTimestamp": f"2026-11-0{len(name)}T00:00:00Z"}
    return {"metadata": meta, "spec": {"selector": selector or {}, "units": [{"resource": "ecs", **unit}]}}


def warnings_of(policies: list[Json], *pods: Pod) -> list[tuple[str, str]]:
    found = examine(sound(policies=policies, policy_pods=list(pods)), CHECKS)
    relevant = [one for one in found if one.check == "policy-pods" and one.state != "ok"]
    assert all(one.state == "warning" and names.SCHEDULER_NAME in one.suggestion for one in relevant)
    return [(one.subject, one.message) for one in relevant]


def test_they_are_counted_and_a_max_without_effect_is_named() -> None:
    capped = policy(max=2)
    assert warnings_of([capped], pod("b"), pod("a"), pod("c", names.SCHEDULER_NAME)) == [
        (
            "resourcepolicy default/p",
            "2 pods that it selects name another scheduler, which applies neither its order nor its max, as pod default/a",
        )
    ]
    assert warnings_of([policy()], pod("a")) == [
        (
            "resourcepolicy default/p",
            "1 pod that it selects names another scheduler, which does not apply its order, as pod default/a",
        )
    ]


def test_our_pods_node_pods_ended_pods_and_unselected_pods_are_not_reported() -> None:
    none = (
        pod("a", names.SCHEDULER_NAME), pod("b", ""), pod("c", owner="DaemonSet"), pod("d", owner="Node"),
        pod("e", phase="Succeeded"), pod("f", app="web"),
    )  # fmt: skip
    assert (
        warnings_of([policy(selector={"app": "nginx"}), policy("far", "elsewhere"), {"spec": {}}], *none)
        == []
    )
    assert warnings_of([], pod("a")) == []


def test_of_two_policies_the_older_is_reported() -> None:
    assert [one[0] for one in warnings_of([policy("younger"), policy("old")], pod("a"))] == [
        "resourcepolicy default/old"
    ]
