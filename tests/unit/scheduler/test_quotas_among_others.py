"""Elastic quotas beside what else ends pods: few nodes are looked at and the right ones, and nobody moves in vain."""

import msgspec
import pytest

from gpushare.ledger.preemption import MOST_TRIED
from gpushare.scheduler import view
from gpushare.scheduler.extender import preempt_pods
from gpushare.scheduler.wire import read_preemption
from tests.unit.scheduler.moving import INTERVAL_S, Moving
from tests.unit.scheduler.test_quotas import MEM, ask, bound, create, look, tree
from tests.unit.scheduler.world import World, gpu_node


async def spread(world: World, nodes: int, *units: int, lent: int = 9) -> list[str]:
    """So many nodes with pods of so many units each of quota b, at priority 0; quota c has one of 16 at ``lent`` on one more."""
    names_ = [f"m{number}" for number in range(nodes)]
    for node in names_:
        world.add_node(gpu_node(node, 16384))
        for place, amount in enumerate(units):
            await bound(world, "z", f"b-{node}-{place}", amount, node, priority=0)
    await bound(world, "w", "lent", 16, priority=lent)
    return names_


async def test_a_pod_of_higher_priority_that_was_lent_its_room_is_found_among_many_that_keep_theirs(
    world: World,
) -> None:
    others = MOST_TRIED + 6
    children = [
        {"name": "a", "namespaces": ["x"], "min": {MEM: 16}},
        {"name": "b", "namespaces": ["z"], "min": {MEM: 16 * others}},
        {"name": "c", "namespaces": ["w"]},
    ]
    world.view.quotas.upsert(tree({"name": "root", "min": {MEM: 16 * (others + 1)}, "children": children}))
    nodes = [*await spread(world, others, 16), "n1"]
    create(world, "x", "mine", 16, priority=5)
    assert not ask(world, "x", "mine", *nodes)[0]
    await look(world)
    assert world.api.evicted == ["lent"]
    # Nor does kube-scheduler's choice hide it: of its victims only those count that may be ended.
    create(world, "x", "next", 8, priority=5)
    chosen = {node: {"Pods": [{"UID": f"uid-b-{node}-0"}], "NumPDBViolations": 0} for node in nodes[:-1]}
    body = {"Pod": world.api.pods["x/next"], "NodeNameToMetaVictims": chosen | {"n1": {"Pods": []}}}
    answer = preempt_pods(world.view, read_preemption(msgspec.json.encode(body)), lambda uid: None)
    assert msgspec.json.decode(answer)["NodeNameToMetaVictims"] == {}, (
        "a is at its min with what is kept for it"
    )


@pytest.mark.parametrize(("lent", "most_looks"), [(9, 1), (0, 5)])
@pytest.mark.parametrize("counted", [True, False])
async def test_nodes_that_only_seem_to_help_do_not_hide_one_that_does(
    world: World, lent: int, most_looks: int, *, counted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of b's pods on a node one may go and one may not, which only a look at the node tells. Each look begins elsewhere."""
    others = 2 * MOST_TRIED
    children = [
        {"name": "a", "namespaces": ["x"], "min": {MEM: 16}},
        {"name": "b", "namespaces": ["z"], "min": {MEM: 16 * others - 4}},
        {"name": "c", "namespaces": ["w"]},
    ]
    world.view.quotas.upsert(tree({"name": "root", "min": {MEM: 16 * (others + 1)}, "children": children}))
    nodes = [*await spread(world, others, 4, 12, lent=lent), "n1"]
    if not counted:
        monkeypatch.setattr(view, "_MOST_REACHED", 0)
    create(world, "x", "mine", 16, priority=5)
    looks = 0
    while not world.api.evicted:
        looks += 1
        assert looks <= most_looks
        assert not ask(world, "x", "mine", *nodes)[0]
        await look(world)
    assert world.api.evicted == ["lent"]


async def test_nobody_moves_for_a_pod_that_its_quota_keeps_waiting() -> None:
    moving = Moving()
    moving.node("n", 16, 16)
    moving.node("m", 16)
    for name in ("a", "b"):
        await moving.bound(name, 10, "n")
    moving.made("wide", 12, "")
    assert not moving.ask("wide", "n")
    record = tree({"name": "root", "children": [{"name": "a", "namespaces": ["default"], "max": {MEM: 20}}]})
    moving.view.quotas.upsert(record)
    await moving.look(INTERVAL_S)
    assert not moving.api.evicted
    moving.view.quotas.remove("tree", record)
    await moving.look(INTERVAL_S)
    assert moving.api.evicted
