"""Pods without a GPU that a ResourcePolicy or an elastic quota keeps pending: their reasons are reported, too."""

import json
from typing import Any

import pytest

from gpushare.inspect.arguments import parse
from gpushare.inspect.color import Paint
from gpushare.inspect.views.explain import why
from gpushare.inspect.views.pending import waiting
from gpushare.scheduler.framework.cycle import filter_nodes
from gpushare.scheduler.framework.cycle_state import Bodies
from gpushare.scheduler.plugins.explain.decisions_api import decisions_response
from tests.at_once import at_once
from tests.unit.inspect.test_views import cluster
from tests.unit.scheduler.elastic_quota.test_quotas import tree
from tests.unit.scheduler.elastic_quota.test_quotas_of_every_pod import plain, processors
from tests.unit.scheduler.resource_policy.policy_world import NODES, PolicyWorld
from tests.unit.scheduler.server.test_app import Browser, filter_body
from tests.unit.scheduler.world import World


@pytest.fixture
async def world() -> World:
    return World()


@pytest.fixture
async def governed() -> PolicyWorld:
    """A policy with one unit, which has a pod."""
    made = PolicyWorld()
    made.rules({"max": 1})
    made.without_gpu = made.policies.kept
    made.make("first")
    await made.bind("first", "a1")
    made.look("first")
    return made


def ask(world: PolicyWorld, name: str) -> None:
    body = filter_body(world.api.pods[f"default/{name}"], *NODES)
    filter_request = Bodies().read(json.dumps(body).encode())
    filter_nodes(world.view, filter_request, world.framework(world.decisions))


def line(world: World) -> Any:
    return json.loads(at_once(decisions_response(world.decisions, "/gpushare/decisions")))


async def test_a_pod_that_its_policy_keeps_pending_is_explained(governed: PolicyWorld) -> None:
    governed.make("web")
    ask(governed, "web")

    shown = why(cluster(governed), parse(("--why", "web")), Paint()).text
    listed = waiting(cluster(governed), parse(("--pending",)), Paint()).text

    reason = "3 nodes: ResourcePolicy default/p: the node is in none of its units"
    assert "reason:      none of 5 nodes fits; " in shown
    assert reason in shown
    assert "2 nodes: ResourcePolicy default/p: unit 1: it has 1 of at most 1 pod" in shown
    assert "suggestion:  capacity in one of the units of its ResourcePolicy" in shown
    assert "category:    policy" in shown
    assert ": 0 fit, 5 do not" in shown
    assert "no pod of that name" not in shown
    assert listed.splitlines()[1].split()[:2] == ["default", "web"]
    assert reason in listed
    # The dashboard lists pods with GPU requests.
    assert line(governed)["waiting"] == []


async def test_a_pod_with_a_node_is_no_longer_listed(governed: PolicyWorld) -> None:
    governed.make("web")
    ask(governed, "web")
    assert [one["key"] for one in line(governed)["besides"]] == ["default/web"]
    governed.api.pods["default/web"]["spec"]["nodeName"] = "a2"
    governed.look("web")

    shown = why(cluster(governed), parse(("--why", "web")), Paint()).text

    assert line(governed)["besides"] == []
    assert "no pod of that name requests or holds GPU capacity." in shown
    assert "was asked" not in shown


async def test_once_its_policy_is_gone_or_it_was_bound_nothing_holds_it_back(governed: PolicyWorld) -> None:
    for name in ("web", "late"):
        governed.make(name)
        ask(governed, name)
    assert {one["key"] for one in line(governed)["besides"]} == {"default/web", "default/late"}
    governed.decisions.bind_ended("uid-web", "default/web", "a2")
    assert {one["key"] for one in line(governed)["besides"]} == {"default/late"}
    governed.policies.remove_policy("default/p")
    assert line(governed)["besides"] == []


async def test_a_pod_whose_quota_is_exhausted_is_explained(world: World) -> None:
    world.quotas.upsert(tree(processors(a=4, b=4)))
    for pod in (plain("x", "there", node="n1", cpu=4), plain("x", "late", cpu=1)):
        world.api.create(pod)
        world.see(pod["metadata"]["name"])
    assert line(world)["besides"] == []
    await Browser(world).post("filter", filter_body(world.api.pods["x/late"], "n1"))

    (one,) = line(world)["besides"]

    assert (one["key"], one["category"]) == ("x/late", "quota")
    assert one["reason"] == "elastic quota root/a: 4 of 4 cpu used (max), 1 requested"
    assert one["suggestion"] == "wait for pods of elastic quota root/a to end, or raise the max of it"
    # kube-scheduler's own rules refused it since.
    await world.clock.turn(5)
    message = "0/1 nodes are available: 1 Insufficient memory."
    world.api.pods["x/late"]["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "message": message}
    ]
    world.view.remove_pod(world.view.bound_non_gpu["uid-there"])
    world.see("late")
    (one,) = line(world)["besides"]
    assert (one["category"], one["suggestion"]) == (
        "rules",
        "a node with more free memory, or a smaller request",
    )
