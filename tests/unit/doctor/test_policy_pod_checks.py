"""Pods that a ResourcePolicy selects and that another scheduler places are told of, with one of them as an example."""

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


def told(policies: list[Json], *pods: Pod) -> list[tuple[str, str]]:
    found = examine(sound(policies=policies, policy_pods=list(pods)), CHECKS)
    said = [one for one in found if one.check == "policy-pods" and one.state != "ok"]
    assert all(one.state == "warning" and names.SCHEDULER_NAME in one.suggestion for one in said)
    return [(one.subject, one.message) for one in said]


def test_they_are_counted_and_the_max_that_does_not_hold_is_named() -> None:
    capped = policy(max=2)
    assert told([capped], pod("b"), pod("a"), pod("c", names.SCHEDULER_NAME)) == [
        (
            "resourcepolicy default/p",
            "2 pods that it selects name another scheduler, to which neither its order nor its max is known, as pod default/a",
        )
    ]
    assert told([policy()], pod("a")) == [
        (
            "resourcepolicy default/p",
            "1 pod that it selects names another scheduler, to which its order is not known, as pod default/a",
        )
    ]


def test_pods_of_ours_of_nodes_that_ended_or_that_no_policy_selects_are_none() -> None:
    none = (
        pod("a", names.SCHEDULER_NAME), pod("b", ""), pod("c", owner="DaemonSet"), pod("d", owner="Node"),
        pod("e", phase="Succeeded"), pod("f", app="web"),
    )  # fmt: skip
    assert told([policy(selector={"app": "nginx"}), policy("far", "elsewhere"), {"spec": {}}], *none) == []
    assert told([], pod("a")) == []


def test_of_two_policies_the_older_is_reported() -> None:
    assert [one[0] for one in told([policy("younger"), policy("old")], pod("a"))] == [
        "resourcepolicy default/old"
    ]
