"""A pod is resized in place, or has pod-level CPU requests: its share stays, and its request is counted as in Kubernetes."""

import copy
import json
from typing import Any

import pytest

from gpushare.api import names
from gpushare.api.crd.elastic_quota_tree import decode_quota_tree
from gpushare.api.crd.resource_policy import policy_pod_of
from gpushare.api.objects import decode_pod
from tests.unit.scheduler.elastic_quota.test_quotas import ask
from tests.unit.scheduler.framework.test_fragmentation_fed import (
    free_cpu,
    node_object,
    pod,
    reader,
    seen,
    view,
)
from tests.unit.scheduler.resource_policy.policy_world import PolicyWorld
from tests.unit.scheduler.world import World, gpu_node, pod_object


def resized(made: dict[str, Any], cpu: str) -> dict[str, Any]:
    found = copy.deepcopy(made)
    found["spec"]["containers"][0]["resources"]["requests"] = {"cpu": cpu}
    return found


@pytest.mark.parametrize("how", [{}, {"labels": {names.LABEL_POD_GPU_COUNT: "2"}}])
async def test_its_share_stays_as_it_is(how: dict[str, Any]) -> None:
    world = PolicyWorld()
    world.add_node(gpu_node("a1", 16384, 16384))
    world.make("p", 8, **how)
    await world.bind("p", "a1")
    world.look("p")
    before = world.ledger.held("uid-p")
    for cpu in ("4", "100m"):
        world.api.pods["default/p"] = resized(world.api.pods["default/p"], cpu)
        world.look("p")
        assert world.ledger.held("uid-p") == before
    # A pending resize at its node has no effect either.
    world.api.pods["default/p"]["status"]["resize"] = "InProgress"
    world.look("p")
    assert world.ledger.held("uid-p") == before


def test_free_processors_follow_for_the_policy_fragmentation() -> None:
    world = view()
    world.upsert_node(reader().read(node_object(cpu="8")))
    plain, shared = pod("plain", cpu=2, node="n1"), pod("shared", mem=4, cpu=1, node="n1")
    seen(world, plain)
    seen(world, shared)
    assert free_cpu(world) == 5000
    seen(world, resized(plain, "3"))
    seen(world, resized(shared, "500m"))
    assert free_cpu(world) == 4500
    whole = copy.deepcopy(plain)
    whole["spec"]["resources"] = {"requests": {"cpu": "7"}}
    seen(world, whole)
    assert free_cpu(world) == 500


def test_a_policys_unit_holds_the_current_requests_of_its_pods() -> None:
    world = PolicyWorld()
    world.rules({"maxResources": {"cpu": "4"}}, {})
    first = pod_object("first", labels={"app": "x"}, node="a1")
    for cpu, takes in (("1", "a1"), ("3", "b1"), ("2", "a1")):
        world.policies.upsert_pod(policy_pod_of(decode_pod(resized(first, cpu))))
        world.api.create(resized(pod_object("next", labels={"app": "x"}), "2"))
        assert world.ask("next", "a1", "b1")[0] == [takes]
    first["spec"]["resources"] = {"requests": {"cpu": "3"}, "limits": {"cpu": "9"}}
    world.policies.upsert_pod(policy_pod_of(decode_pod(first)))
    assert world.ask("next", "a1", "b1")[0] == ["b1"]


def test_a_quota_counts_current_requests_and_admits_others_when_they_shrink() -> None:
    world = World()
    leaf = {"name": "team", "namespaces": ["default"], "max": {"cpu": 4}}
    written = {"metadata": {"name": "t", "uid": "t"}, "spec": {"root": {"name": "root", "children": [leaf]}}}
    world.quotas.upsert(decode_quota_tree(json.dumps(written).encode()))
    world.quotas.are_read(["default"])
    world.add_node(gpu_node("n1", 16384))
    world.api.create(resized(pod_object("first", node="n1"), "1"))
    world.api.create(resized(pod_object("next", 4), "2"))
    for cpu, used in (("1", ""), ("3", "3 of 4"), ("2", "")):
        world.api.pods["default/first"] = resized(world.api.pods["default/first"], cpu)
        world.see("first")
        world.see("next")
        fits, reasons = ask(world, "default", "next")
        assert (fits == ["n1"]) is (used == "")
        assert used in "".join(reasons.values())
    world.api.pods["default/first"]["spec"]["resources"] = {"requests": {"cpu": "2500m"}}
    world.see("first")
    assert "2500m of 4 cpu used (max), 2 requested" in "".join(ask(world, "default", "next")[1].values())
