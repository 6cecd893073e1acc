"""Pods that are being deleted count as room only if their grace period ends soon: whoever deletes a pod chooses it."""

import time

import msgspec
import pytest

from gpushare.scheduler.plugins.preemption.plugin import RESERVED_S
from tests.unit.scheduler.elastic_quota.test_quotas import MEM, tree
from tests.unit.scheduler.preemption.test_preemption import ask, bound, look
from tests.unit.scheduler.world import World, gpu_node

GIB = 1024
YEAR_S = 365 * 24 * 3600


@pytest.fixture
def world() -> World:
    made = World(counts_grace=True)
    made.add_node(gpu_node("n1", 16 * GIB))
    made.add_node(gpu_node("n2", 16 * GIB))
    return made


def delete(world: World, name: str, grace_s: float, *, preempted: bool = False) -> None:
    """The informer sees that the pod is being deleted."""
    pod = world.api.pods[f"default/{name}"]
    at = time.gmtime(world.clock.time_ns() / 1e9 + grace_s)
    pod["metadata"]["deletionTimestamp"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", at)
    if preempted:
        condition = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
        pod["status"] = {"phase": "Running", "conditions": [condition]}
    world.see(name)


async def high_is_refused(world: World, *nodes: str) -> str:
    """A pod of high priority that no node takes; returns where room is reserved for it."""
    if "default/high" not in world.api.pods:
        world.create("high", 15, priority=9)
    assert not ask(world, "high", *nodes)
    await look(world)
    return world.ledger.nominations.node_of("uid-high")


async def test_a_deletion_with_a_long_grace_period_frees_nothing_and_others_are_evicted(world: World) -> None:
    await bound(world, "lingers", 15, "n1", priority=9)
    await bound(world, "low", 15, "n2", priority=1)
    delete(world, "lingers", YEAR_S)
    assert await high_is_refused(world, "n1", "n2") == "n2"
    assert world.api.evicted == ["low"]


async def test_a_pod_that_lingers_is_no_victim_as_another_deletion_would_not_end_it(world: World) -> None:
    await bound(world, "lingers", 15, "n1", priority=1)
    delete(world, "lingers", YEAR_S)
    assert not await high_is_refused(world, "n1")
    assert not world.api.evicted


@pytest.mark.parametrize("grace_s", [0, 30, RESERVED_S, -60])
async def test_a_deletion_that_ends_within_the_life_of_a_reservation_frees_room(
    world: World, grace_s: float
) -> None:
    await bound(world, "leaves", 15, "n1", priority=9)
    await bound(world, "low", 15, "n2", priority=1)
    delete(world, "leaves", grace_s)
    assert await high_is_refused(world, "n1", "n2") == "n1"
    assert not world.api.evicted


async def test_the_end_of_a_grace_period_comes_near_and_passes_without_an_event(world: World) -> None:
    await bound(world, "leaves", 15, "n1", priority=9)
    delete(world, "leaves", 1000)
    assert not await high_is_refused(world, "n1")
    await world.clock.turn(900)
    assert await high_is_refused(world, "n1") == "n1"
    world.ledger.nominations.remove("uid-high")
    await world.clock.turn(2 * RESERVED_S)
    assert not await high_is_refused(world, "n1")


@pytest.mark.parametrize("by_kube_scheduler", [False, True])
async def test_evicted_pods_are_awaited_for_the_grace_period_of_their_manifest(
    world: World, by_kube_scheduler: bool
) -> None:
    await bound(world, "low", 15, "n1", priority=1)
    await bound(world, "other", 15, "n2", priority=2)
    if not by_kube_scheduler:
        assert await high_is_refused(world, "n1", "n2") == "n1"
        world.ledger.nominations.remove("uid-high")
    delete(world, "low", 600, preempted=by_kube_scheduler)
    assert await high_is_refused(world, "n1", "n2") == "n1"
    assert world.api.evicted == ([] if by_kube_scheduler else ["low"])


@pytest.mark.parametrize("grace_s", [30, YEAR_S])
async def test_a_quota_counts_a_pod_as_gone_only_if_it_soon_is(world: World, grace_s: float) -> None:
    await bound(world, "p", 8, "n1")
    world.quotas.upsert(tree({"name": "root", "min": {MEM: 16}, "max": {MEM: 16}, "namespaces": ["default"]}))
    delete(world, "p", grace_s)
    leaf = world.quotas.books.leaf("default")
    assert leaf is not None
    assert world.quotas.books.held(leaf, MEM) == 8000
    assert world.quotas.books.staying(leaf, MEM) == (0 if grace_s == 30 else 8000)


async def test_kube_scheduler_is_offered_no_room_by_the_end_of_a_pod_that_lingers(world: World) -> None:
    await bound(world, "lingers", 15, "n1", priority=1)
    delete(world, "lingers", YEAR_S)
    world.create("high", 15, priority=9)
    body = {
        "Pod": world.api.pods["default/high"],
        "NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "uid-lingers"}], "NumPDBViolations": 0}},
    }
    answer = await world.verb().preempt(msgspec.json.encode(body))
    assert not msgspec.json.decode(answer)["NodeNameToMetaVictims"]
