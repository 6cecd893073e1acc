"""The record of preemption: the verb's offers and answers, our own victims, and how users read it."""

from typing import Any

import msgspec
import pytest

from gpushare.api.disruption import decode_budget
from gpushare.inspect.errors import InspectError
from gpushare.inspect.views.explain import why
from gpushare.inspect.views.explain_preemption import of_preemption
from gpushare.kube.client.errors import ApiError
from gpushare.scheduler.framework.preemption_results import (
    BELOW_MIN,
    MOST_VICTIMS,
    NOT_ENOUGH,
    NOT_LOOKED_AT,
    of_verb,
)
from gpushare.scheduler.server.protocol import Victims
from tests.unit.inspect.test_views import PLAIN, both, cluster, options
from tests.unit.scheduler.explain.test_decisions import ask, get
from tests.unit.scheduler.preemption.test_preemption import bound, end, look
from tests.unit.scheduler.resource_policy.policy_world import PolicyWorld
from tests.unit.scheduler.server.test_app import Browser, filter_body
from tests.unit.scheduler.world import World, gpu_node


def preempt_body(world: World, name: str, **mind: list[str]) -> dict[str, Any]:
    """kube-scheduler's request: its intended victims' UIDs by node."""
    offered = {
        node: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": 0} for node, uids in mind.items()
    }
    return {"Pod": world.api.pods[f"default/{name}"], "NodeNameToMetaVictims": offered}


async def test_kube_schedulers_victims_are_shown_with_the_additional_ones(
    browser: Browser, world: World
) -> None:
    for node in ("n2", "n3"):
        world.add_node(gpu_node(node, 16384))
    await bound(world, "low", 8, priority=1)
    await bound(world, "other", 8, priority=2)
    await bound(world, "same", 16, "n2", priority=9)
    await ask(browser, world, "high", "n1", "n2", mem=16, priority=9)
    body = preempt_body(world, "high", n1=["uid-low", "uid-plain"], n2=[], n3=[])

    answer = await browser.post("preempt", body)
    record = await get(browser, "/default/high")

    assert [one["UID"] for one in answer["NodeNameToMetaVictims"]["n1"]["Pods"]] == [
        "uid-low",
        "uid-plain",
        "uid-other",
    ]
    (_, room) = record["preemption"]["room"]
    assert room == {
        "node": "n1",
        "count": 3,
        "victims": [
            {"uid": "uid-low", "pod": "default/low", "priority": 1, "besides": False},
            {"uid": "uid-plain", "pod": "", "priority": 0, "besides": False},
            {"uid": "uid-other", "pod": "default/other", "priority": 2, "besides": True},
        ],
    }
    assert record["preemption"]["refused"] == [
        {
            "reason": "its GPUs would not have enough free even if every pod that may be preempted were evicted",
            "nodes": 1,
            "examples": [],
        }
    ]
    # Until kube-scheduler has chosen a node, no victim is known.
    assert record["awaited"] == []
    low = await get(browser, "/default/low")
    assert low["endsFor"] == [{"pod": "default/high", "by": "kube-scheduler", "node": "n1"}]
    text = why(cluster(world), options("--why", "low"), PLAIN).text
    assert "It will be evicted for pod default/high, on node n1, if kube-scheduler chooses that node." in text

    world.api.pods["default/high"]["status"]["nominatedNodeName"] = "n1"
    world.see("high")
    kubectl = cluster(world)
    text = why(kubectl, options("--why", "high"), PLAIN).text
    both(lambda form: why(kubectl, options("--why", "high", "-o", form), PLAIN))

    assert "on 3 nodes, of which 2 would then have enough capacity, and it chooses one:" in text
    assert "n1    default/low (priority 1), the pod with UID uid-plain  default/other (priority 2)" in text
    assert (
        "not on 1: its GPUs would not have enough free even if every pod that may be preempted were evicted"
        in text
    )
    assert "Its nominated node is n1: capacity is being freed for it there." in text
    assert "It is waiting for default/low (priority 1), default/other (priority 2) to terminate." in text

    end(world, "low")
    assert [one["pod"] for one in (await get(browser, "/default/high"))["awaited"]] == ["default/other"]


async def test_insufficient_victims_are_reported(browser: Browser, world: World) -> None:
    await bound(world, "low", 8, priority=1)
    await bound(world, "same", 8, priority=9)
    await ask(browser, world, "high", "n1", mem=16, priority=9)
    await browser.post("preempt", preempt_body(world, "high", n1=["uid-low"]))

    text = why(cluster(world), options("--why", "high"), PLAIN).text

    assert "on 1 node, of which 0 would then have enough capacity." in text
    assert "not on 1: " in text


async def test_pods_without_gpus_and_invalid_requests_leave_no_record(browser: Browser, world: World) -> None:
    world.create("plain")
    world.create("odd", "x")
    for name in ("plain", "odd"):
        await browser.post("preempt", preempt_body(world, name, n1=[]))
        assert (await get(browser, f"/default/{name}"))["preemption"] is None


def test_nodes_of_another_unit_and_unexamined_nodes_are_counted(world: World) -> None:
    some = {f"n{number}": Victims((), 0) for number in range(100)}
    left = {name: some[name] for name in list(some)[:80]}
    found = {"n0": Victims(tuple(f"uid-{number}" for number in range(50)), 0)}
    refused_nodes = {f"n{number}": BELOW_MIN if number > 6 else NOT_ENOUGH for number in range(1, 11)}

    preemption = of_verb(world.view, 1.0, some, left, found, refused_nodes, ended_early=True)

    assert {one.reason: (one.nodes, one.examples) for one in preemption.refused} == {
        NOT_LOOKED_AT: (69, ()),
        "the pod's ResourcePolicy assigns it to another node": (20, ()),
        NOT_ENOUGH: (6, ("n1", "n2", "n3")),
        BELOW_MIN: (4, ("n7", "n8", "n9")),
    }
    assert (preemption.room[0].count, len(preemption.room[0].victims)) == (50, MOST_VICTIMS)


async def test_an_answer_about_very_many_nodes_reports_that_not_all_were_examined(
    browser: Browser, world: World
) -> None:
    many = {f"m{number}": [f"uid-low{number}"] for number in range(12)}
    for number, node in enumerate(many):
        world.add_node(gpu_node(node, 16384))
        await bound(world, f"low{number}", 16, node, priority=1)
    await ask(browser, world, "high", *many, mem=16, priority=9)
    await browser.post("preempt", preempt_body(world, "high", **many))

    preemption = (await get(browser, "/default/high"))["preemption"]

    assert len(preemption["room"]) == 8
    assert preemption["refused"] == [{"reason": NOT_LOOKED_AT, "nodes": 4, "examples": []}]


async def test_our_victims_are_shown_for_both_pods_until_they_are_gone(
    browser: Browser, world: World
) -> None:
    await bound(world, "low", 8, priority=1)
    await bound(world, "middle", 8, priority=5)
    world.create("high", 8, priority=9)
    await browser.post("filter", filter_body(world.api.pods["default/high"], "n1"))
    await look(world)
    kubectl = cluster(world)

    high = why(kubectl, options("--why", "high"), PLAIN).text
    low = why(kubectl, options("--why", "low"), PLAIN).text
    document = both(lambda form: why(kubectl, options("--why", "high", "-o", form), PLAIN))

    assert "it preempted default/low (priority 1) on node n1." in high
    assert "It is waiting for default/low (priority 1) to terminate." in high
    assert "It is evicted for pod default/high, on node n1." in low
    assert document["record"]["awaited"][0]["pod"] == "default/low"

    end(world, "low")
    events = {
        "/api/v1/namespaces/default/events": {
            "items": [{"reason": "Preempted", "message": "evicted for pod default/high"}]
        }
    }
    with pytest.raises(
        InspectError, match="of namespace default is gone: Preempted: evicted for pod default/high"
    ):
        why(cluster(world, **events), options("--why", "low"), PLAIN)
    assert (await get(browser, "/default/high"))["awaited"] == []


async def test_capacity_freed_by_terminating_pods_is_shown(browser: Browser, world: World) -> None:
    await bound(world, "a", 16, priority=1)
    world.api.pods["default/a"]["metadata"]["deletionTimestamp"] = "2026-11-22T10:00:00Z"
    world.see("a")
    world.create("high", 8, priority=9)
    await browser.post("filter", filter_body(world.api.pods["default/high"], "n1"))
    await look(world)

    text = why(cluster(world), options("--why", "high"), PLAIN).text

    assert "capacity on node n1 is reserved for it since" in text
    assert "pods that are already terminating there free enough." in text


async def test_the_reason_for_no_eviction_is_shown(browser: Browser, world: World) -> None:
    await bound(world, "low", 16, priority=1, labels={"app": "low"})
    world.create("high", 8, priority=9)
    body = filter_body(world.api.pods["default/high"], "n1")
    budget = {
        "metadata": {"name": "b", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "low"}}},
        "status": {"disruptionsAllowed": 0},
    }
    world.api.budgets = [decode_budget(msgspec.json.encode(budget))]
    await browser.post("filter", body)
    await look(world)
    text = why(cluster(world), options("--why", "high"), PLAIN).text
    assert "protected by a PodDisruptionBudget would free enough: default/low." in text

    world.api.budgets = []

    def refuse() -> None:
        raise ApiError(429, "TooManyRequests", "Cannot evict pod as it would violate the pod's budget", "")

    world.api.before.append(refuse)
    await browser.post("filter", body)
    await look(world)
    text = why(cluster(world), options("--why", "high"), PLAIN).text
    assert "the API server did not allow the preemption: " in text

    world.create("same", 8, priority=1)
    world.preemptor.post_filter("uid-same", ["n1"])
    await look(world)
    text = why(cluster(world), options("--why", "same"), PLAIN).text
    assert "Preemption: no victims at" in text
    assert "no node would have enough free even if every pod that may be preempted were evicted." in text

    # Once it has found a place this is obsolete.
    record = await get(browser, "/default/same")
    assert of_preemption(record, "")
    assert of_preemption({**record, "state": "bound"}, "") == []


async def test_a_pod_bound_meanwhile_no_longer_has_a_decision(world: World) -> None:
    await bound(world, "low", 8, priority=1)
    world.create("high", 8, priority=9)
    world.preemptor.post_filter("uid-high", ["n1"])
    world.ledger.hold("uid-high", "default/high", "n1", world.ledger.held("uid-low").allocation)  # type: ignore[union-attr]
    await look(world)
    assert world.decisions.get("uid-high") is None


async def test_nodes_that_a_policy_has_for_others_are_counted() -> None:
    world = PolicyWorld()
    browser = Browser(world, world.policies)
    for name in ("a1", "b1"):
        world.add_node(gpu_node(name, 16384))
    world.rules({"resource": "ecs", "nodeSelector": {"pool": "a"}})
    await bound(world, "low", 16, "a1", priority=1)
    world.make("high", 16, priority=9)
    await browser.post("preempt", preempt_body(world, "high", a1=["uid-low"], n1=[]))

    preemption = (await get(browser, "/default/high"))["preemption"]

    assert [one["node"] for one in preemption["room"]] == ["a1"]
    assert preemption["refused"] == [
        {"reason": "the pod's ResourcePolicy assigns it to another node", "nodes": 1, "examples": []}
    ]


def test_many_victims_are_named_in_part_and_older_schedulers_report_nothing() -> None:
    victims = [
        {"uid": f"u{number}", "pod": f"default/p{number}", "priority": 0, "besides": False}
        for number in range(10)
    ]
    found = {
        "by": "gpushare",
        "at": 1.0,
        "nodes": 1,
        "room": [{"node": "n", "count": 10, "victims": victims}],
    }
    lines = of_preemption({"preemption": found, "state": "bound"}, "n")
    assert lines[-1].endswith("default/p7 (priority 0) and 2 more on node n.")
    assert of_preemption({"state": "waiting"}, "") == []
