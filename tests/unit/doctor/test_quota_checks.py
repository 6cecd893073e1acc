"""Elastic quotas: the doctor reports their status, and trees and namespaces that are ignored."""

import json
from typing import Any

import pytest

from gpushare.api import names
from gpushare.doctor.cluster.facts import Json
from gpushare.doctor.cluster.registry import CHECKS
from gpushare.doctor.findings import Finding, examine
from tests.unit.doctor.healthy_cluster import sound

TEAMS = frozenset(("default", "kube-system", "team-a", "team-b"))


def quota(name: str, least: int, most: int, *children: Json, namespaces: tuple[str, ...] = ()) -> Json:
    amounts = {"min": {names.GPU_MEM: least}, "max": {names.GPU_MEM: most}}
    return {"name": name, **amounts, "children": list(children), "namespaces": list(namespaces)}


def root(b_most: int = 45, b: tuple[str, ...] = ("team-b",)) -> Json:
    teams = (quota("team-a", 30, 60, namespaces=("team-a",)), quota("team-b", 30, b_most, namespaces=b))
    return quota("root", 60, 60, *teams)


def tree(name: str = "t", spec: Json | None = None, namespace: str = "kube-system", **metadata: Any) -> Json:
    meta = {
        "name": name,
        "namespace": namespace,
        "uid": f"u-{name}",
        "creationTimestamp": "2026-11-01T00:00:00Z",
    }
    return {"metadata": {**meta, **metadata}, "spec": {"root": spec or root()}}


def findings_of(*trees: Json) -> list[Finding]:
    found = [
        one for one in examine(sound(quota_trees=list(trees), namespaces=TEAMS), CHECKS) if one.state != "ok"
    ]
    assert {one.check for one in found} <= {"elastic-quotas"}
    assert all(one.suggestion for one in found)
    return found


def test_a_tree_in_force_is_ok() -> None:
    assert findings_of(tree()) == []
    assert findings_of() == []


def test_a_tree_that_was_invalid_from_the_start_is_a_fault() -> None:
    (found,) = findings_of(tree(spec=root(20)))
    assert (found.state, found.subject) == ("fault", "elasticquotatree kube-system/t")
    assert found.message == (
        "it is rejected, and no quota is in force: quota team-b: min of aliyun.com/gpu-mem (30) is above its max (20)"
    )


def test_a_tree_that_became_invalid_is_a_warning_as_the_earlier_one_stays() -> None:
    wrong = tree(spec=root(20)) | {"status": {"state": "Refused", "inForce": json.dumps(root())}}
    (found,) = findings_of(wrong)
    assert found.state == "warning"
    assert found.message.startswith("it is rejected, and the previous quotas stay in force: quota team-b")


def test_a_tree_in_another_namespace_is_ignored() -> None:
    (found,) = findings_of(tree(), tree("x", namespace="default"))
    assert (found.state, found.subject) == ("warning", "elasticquotatree default/x")
    assert found.message == "it has no effect: only trees in namespace kube-system count"
    assert "`kubectl -n default delete elasticquotatree x`" in found.suggestion


def test_of_two_trees_the_younger_is_named() -> None:
    (found,) = findings_of(tree("young", creationTimestamp="2026-11-02T00:00:00Z"), tree())
    assert (found.state, found.subject) == ("warning", "elasticquotatree kube-system/young")
    assert found.message == "it has no effect: tree t is older, and only one tree counts"


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        (("team-bb",), "team-bb (there is team-b)"),
        (("team-b", "zoo"), "zoo"),
        (tuple(f"{n}{n}" for n in range(7)), "00, 11, 22, 33, 44 and 2 more"),
    ],
)
def test_missing_namespaces_are_named_with_their_quota(missing: tuple[str, ...], message: str) -> None:
    (found,) = findings_of(tree(spec=root(b=missing)))
    assert (found.state, found.subject) == ("warning", "elasticquotatree kube-system/t")
    assert found.message == f"quota team-b names namespaces that do not exist: {message}"


def test_objects_that_are_no_tree_are_left_to_the_api_server() -> None:
    assert findings_of({"metadata": {"name": "x", "namespace": "kube-system"}, "spec": 5}) == []
