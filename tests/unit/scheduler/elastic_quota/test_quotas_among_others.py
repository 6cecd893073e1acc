"""Elastic quotas next to other evictions: few nodes are examined, the right ones, and no pod moves needlessly."""

import msgspec
import pytest

from gpushare.ledger.preemption.victims import ENOUGH, MOST_TRIED
from gpushare.scheduler.plugins.preemption import ranks
from gpushare.scheduler.plugins.preemption.extender_preempt import preempt_pods
from gpushare.scheduler.server.protocol import read_preemption
from tests.unit.scheduler.defragmentation.moving import INTERVAL_S, Moving
from tests.unit.scheduler.elastic_quota.test_quotas import MEM, ask, bound, create, look, tree
from tests.unit.scheduler.world import World, gpu_node


async def spread(world: World, nodes: int, *units: int, lent: int = 9) -> list[str]:
    """This many nodes with pods of this many units each of quota b, at priority 0; quota c has one of 16 at ``lent`` on one more."""
    names_ = [f"m{number}" for number in range(nodes)]
    for node in names_:
        world.add_node(gpu_node(node, 16384))
        for place, amount in enumerate(units):
            await bound(world, "z", f"b-{node}-{place}", amount, node, priority=0)
    await bound(world, "w", "lent", 16, priority=lent)
    return names_


async def test_a_borrowing_pod_of_higher_priority_is_found_among_many_within_their_min(
    world: World,
) -> None:
    others = MOST_TRIED + 6
    children = [
        {"name": "a", "namespaces": ["x"], "min": {MEM: 16}},
        {"name": "b", "namespaces": ["z"], "min": {MEM: 16 * others}},
        {"name": "c", "namespaces": ["w"]},
    ]
    world.quotas.upsert(tree({"name": "root", "min": {MEM: 16 * (others + 1)}, "children": children}))
    nodes = [*await spread(world, others, 16), "n1"]
    create(world, "x", "mine", 16, priority=5)
    assert not ask(world, "x", "mine", *nodes)[0]
    await look(world)
    assert world.api.evicted == ["lent"]
    create(world, "x", "next", 8, priority=5)
    assert verb(world, "next", *nodes) == [], "a is at its min with what is kept for it"


def verb(world: World, name: str, *nodes: str) -> list[str]:
    """The nodes on which kube-scheduler may evict the first pod of b for one of a."""
    chosen = {node: {"Pods": [{"UID": f"uid-b-{node}-0"}], "NumPDBViolations": 0} for node in nodes}
    body = {"Pod": world.api.pods[f"x/{name}"], "NodeNameToMetaVictims": chosen}
    answer = preempt_pods(
        world.view, read_preemption(msgspec.json.encode(body)), lambda uid: None, quotas=world.quotas
    )
    return list(msgspec.json.decode(answer)["NodeNameToMetaVictims"])


async def test_kube_scheduler_gets_as_many_nodes_as_it_needs_and_none_if_they_do_not_suffice(
    world: World,
) -> None:
    children = [
        {"name": "a", "namespaces": ["x"], "min": {MEM: 16}},
        {"name": "b", "namespaces": ["z"], "min": {MEM: 16 * 20 - 4}},
        {"name": "c", "namespaces": ["w"]},
    ]
    nodes = await spread(world, 20, 4, 12)
    create(world, "x", "small", 4, priority=5)
    create(world, "x", "large", 16, priority=5)
    assert len(verb(world, "small", *nodes)) == len(verb(world, "large", *nodes)) == ENOUGH
    world.quotas.upsert(tree({"name": "root", "min": {MEM: 16 * 21}, "children": children}))
    assert len(verb(world, "small", *nodes)) == ENOUGH
    assert verb(world, "large", *nodes) == [], "b can spare 4 of each node, and not 12 more"


@pytest.mark.parametrize(("lent", "most_looks"), [(9, 1), (0, 7)])
@pytest.mark.parametrize("counted", [True, False])
async def test_nodes_that_only_seem_to_help_do_not_hide_one_that_does(
    world: World, lent: int, most_looks: int, *, counted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of b's pods on a node one may be evicted and one may not, which only an examination of the node shows. Each starts elsewhere."""
    others = 2 * MOST_TRIED
    children = [
        {"name": "a", "namespaces": ["x"], "min": {MEM: 16}},
        {"name": "b", "namespaces": ["z"], "min": {MEM: 16 * others - 4}},
        {"name": "c", "namespaces": ["w"]},
    ]
    world.quotas.upsert(tree({"name": "root", "min": {MEM: 16 * (others + 1)}, "children": children}))
    nodes = [*await spread(world, others, 4, 12, lent=lent), "n1"]
    if not counted:
        monkeypatch.setattr(ranks, "_MOST_REACHED", 0)
    create(world, "x", "mine", 16, priority=5)
    looks = 0
    while not world.api.evicted:
        looks += 1
        assert looks <= most_looks
        assert not ask(world, "x", "mine", *nodes)[0]
        await look(world)
    assert world.api.evicted == ["lent"]


async def test_no_pod_moves_for_one_that_its_quota_keeps_pending() -> None:
    moving = Moving()
    moving.node("n", 16, 16)
    moving.node("m", 16)
    for name in ("a", "b"):
        await moving.bound(name, 10, "n")
    moving.made("wide", 12, "")
    assert not moving.ask("wide", "n")
    record = tree({"name": "root", "children": [{"name": "a", "namespaces": ["default"], "max": {MEM: 20}}]})
    moving.quotas.upsert(record)
    await moving.look(INTERVAL_S)
    assert not moving.api.evicted
    moving.quotas.remove("tree", record)
    await moving.look(INTERVAL_S)
    assert moving.api.evicted
