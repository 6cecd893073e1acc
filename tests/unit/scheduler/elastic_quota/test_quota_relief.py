"""For a quota's max, pods are evicted on any node, and none needlessly; of whole GPUs all units count."""

from typing import Any

import msgspec

from gpushare.api import names
from gpushare.api.disruption import DisruptionBudget
from gpushare.kube.client.errors import ApiError
from gpushare.scheduler.plugins.preemption.non_gpu_reclaim import RESERVED_S
from gpushare.scheduler.plugins.preemption.plugin import REASON_NO_BUDGET
from tests.unit.scheduler.elastic_quota.test_quotas import (
    HALVES,
    MEM,
    WHOLE,
    ask,
    bind,
    bound,
    create,
    end,
    look,
    root,
    tree,
    verb,
)
from tests.unit.scheduler.elastic_quota.test_quotas_of_every_pod import come, plain
from tests.unit.scheduler.world import World, gpu_node, pod_object


async def test_for_a_higher_max_pods_are_evicted_on_any_node_and_the_pod_goes_where_room_is(
    world: World,
) -> None:
    for name in ("n2", "n3"):
        world.add_node(gpu_node(name, 4096))
    world.add_node(gpu_node("large", 32768))
    world.quotas.upsert(tree(root(a={"min": 12}, b={"min": 4}, whole=16)))
    for number, node in enumerate(("n1", "n2", "n3")):
        await bound(world, "z", f"b-{number}", 4, node, priority=number)
    create(world, "x", "mine", 12, labels=WHOLE)
    assert not ask(world, "x", "mine", "n1", "n2", "n3", "large")[0], "32 units, more than its quota may have"
    await look(world)
    assert world.api.evicted == []

    # On n1 alone 4 units would go; 8 are too many for the root.
    create(world, "x", "asks", 12)
    assert not ask(world, "x", "asks", "n1", "n2", "n3", "large")[0]
    await look(world)
    assert sorted(world.api.evicted) == ["b-0", "b-1"], "the least important, on two nodes"
    assert world.ledger.nominations.node_of("uid-asks") in ("n1", "large")
    assert world.events.notes[-1][2].endswith(
        "elastic quota root/a reclaims, within its min, what root/b borrowed"
    )
    decision = world.decisions.of("uid-asks")
    assert decision is not None
    assert decision.preemption is not None
    (found,) = decision.preemption.room
    assert (found.count, {one.pod for one in found.victims}) == (2, {"z/b-0", "z/b-1"})
    assert not ask(world, "x", "asks", "n1", "n2", "n3", "large")[0], "they are there still"
    for name in ("b-0", "b-1"):
        end(world, "z", name)
    assert ask(world, "x", "asks", "n1", "n2", "n3", "large")[0]


async def test_no_pod_is_evicted_for_a_whole_gpu_with_more_units_than_the_quota_may_have(
    world: World,
) -> None:
    """Of a GPU that is allocated whole all units count, however few were requested."""
    world.add_node(gpu_node("small", 8192))
    world.quotas.upsert(tree(root(a={"min": 8, "max": 12}, b={"min": 2}, whole=16)))
    await bound(world, "z", "on-large", 4, "n1")
    create(world, "x", "mine", 6, labels=WHOLE, priority=5)
    assert not ask(world, "x", "mine")[0]
    await look(world)
    assert world.api.evicted == [], "16 units of n1 would pass the max of 12"
    assert verb(world, "x", "mine", "on-large") == {}

    await bound(world, "z", "on-small", 4, "small")
    assert not ask(world, "x", "mine", "n1", "small")[0]
    await look(world)
    assert world.api.evicted == ["on-small"]
    assert world.ledger.nominations.node_of("uid-mine") == "small"


async def test_kube_scheduler_may_evict_for_a_whole_gpu_that_the_quota_may_have(world: World) -> None:
    world.quotas.upsert(tree(root(a={"min": 16}, b={"min": 0}, whole=16)))
    await bound(world, "z", "there", 4)
    create(world, "x", "mine", 6, labels=WHOLE, priority=5)
    assert [one["UID"] for one in verb(world, "x", "mine", "there")["n1"]["Pods"]] == ["uid-there"]
    world.quotas.remove("kube-system/tree", tree(HALVES))
    assert [one["UID"] for one in verb(world, "x", "mine", "there")["n1"]["Pods"]] == ["uid-there"]


async def test_for_a_gangs_sum_enough_pods_for_all_of_it_are_evicted_or_none(world: World) -> None:
    for name in ("n2", "n3"):
        world.add_node(gpu_node(name, 4096))
    world.add_node(gpu_node("large", 16384, 16384))
    world.quotas.upsert(tree(root(a={"min": 14}, b={"min": 4}, whole=18)))
    for number, node in enumerate(("n1", "n2", "n3")):
        await bound(world, "z", f"b-{number}", 4, node)
    nodes = ("n2", "n3", "large")  # not where the largest of the victims is
    for least in (3, 2):
        labels = {names.LABEL_GANG_NAME: f"g{least}", names.LABEL_GANG_LEAST: str(least)}
        gang = [f"g{least}-{number}" for number in range(least)]
        for name in gang:
            create(world, "x", name, 7, labels=labels)
        for name in gang:
            assert not ask(world, "x", name, *nodes)[0]
        await look(world)
        assert len(world.api.evicted) == (0 if least == 3 else 2), "21 units are more than its min"
        if least == 3:
            for name in gang:
                world.view.remove_pod(world.view.waiting[f"uid-{name}"])
    for name in world.api.evicted:
        end(world, "z", name)
    assert all(ask(world, "x", name, *nodes)[0] == ["large"] for name in gang)


async def test_a_budget_protects_pods_on_other_nodes_too(world: World) -> None:
    world.add_node(gpu_node("n2", 16384))
    world.quotas.upsert(tree(root(a={"min": 12}, b={"min": 4}, whole=16)))
    for number in range(2):
        await bound(world, "z", f"b-{number}", 5, "n1")
    create(world, "x", "mine", 11)
    meta = {"name": "all", "namespace": "z", "generation": 1}
    status = {"disruptionsAllowed": 0, "observedGeneration": 1}
    written = {"metadata": meta, "spec": {"selector": {}}, "status": status}
    world.api.budgets = [msgspec.convert(written, DisruptionBudget)]
    assert not ask(world, "x", "mine", "n2")[0]
    await look(world)
    assert world.api.evicted == []
    assert not world.ledger.nominations.node_of("uid-mine")
    world.api.budgets = []
    ask(world, "x", "mine", "n2")
    await look(world)
    assert len(world.api.evicted) == 1, "two would take b below its min"


def lent() -> dict[str, Any]:
    """A root of 8 processors and 16 units; a (namespace x) is guaranteed 4 and 8, b (z) 2 and 4."""

    def amounts(cpu: int, units: int) -> dict[str, Any]:
        return {"cpu": cpu, MEM: units}

    leaves = [
        {"name": "a", "namespaces": ["x"], "min": amounts(4, 8)},
        {"name": "b", "namespaces": ["z"], "min": amounts(2, 4)},
    ]
    return {"name": "root", "min": amounts(8, 16), "max": amounts(8, 16), "children": leaves}


def claimant(name: str, cpu: int, **more: Any) -> dict[str, Any]:
    pod = pod_object(name, 4, namespace="x", **more)
    pod["spec"]["containers"][0]["resources"]["requests"] = {"cpu": cpu}
    return pod


async def test_for_lent_processors_non_gpu_pods_held_back_by_this_scheduler_are_evicted(
    world: World,
) -> None:
    world.quotas.upsert(tree(lent()))
    for name, cpu, priority in (("p", 2, 5), ("q", 3, 1)):
        come(world, plain("z", name, node="n1", cpu=cpu, priority=priority))
    come(world, plain("z", "r", node="n1", cpu=3, scheduler="default-scheduler", priority=-1))
    come(world, claimant("mine", 3))
    assert not ask(world, "x", "mine")[0]
    await look(world)
    assert world.api.evicted == ["q"], "the default scheduler would place r's successor at once"
    assert world.events.notes[-1][2].endswith(
        "elastic quota root/a reclaims, within its min, what root/b borrowed"
    )
    assert world.ledger.nominations.node_of("uid-mine") == "n1"
    world.view.remove_pod(world.view.bound_non_gpu["uid-q"])
    come(world, plain("z", "again", cpu=3))
    assert not ask(world, "z", "again")[0], "what it gave back is the claimant's"
    assert ask(world, "x", "mine")[0] == ["n1"]


async def test_no_non_gpu_pod_is_evicted_for_gpu_memory_or_below_its_min(world: World) -> None:
    world.quotas.upsert(tree(lent()))
    come(world, plain("z", "p", node="n1", cpu=1, priority=-1))
    for number in range(3):
        await bound(world, "z", f"b-{number}", 5)
    come(world, claimant("mine", 1))
    assert not ask(world, "x", "mine")[0]
    await look(world)
    assert [name[:2] for name in world.api.evicted] == ["b-"], "it would free no GPU memory"

    world.api.evicted.clear()
    come(world, plain("x", "own", node="n1", cpu=1))
    come(world, plain("z", "q", node="n1", cpu=6))
    come(world, claimant("more", 3))
    assert not ask(world, "x", "more")[0]
    await look(world)
    assert world.api.evicted == [], "without q b would have less than its min of 2"


async def test_a_budget_protects_pods_without_a_gpu_too(world: World) -> None:
    world.quotas.upsert(tree(lent()))
    come(world, plain("z", "p", node="n1", cpu=6))
    come(world, plain("z", "q", node="n1", cpu=2))
    meta = {"name": "all", "namespace": "z", "generation": 1}
    status = {"disruptionsAllowed": 0, "observedGeneration": 1}
    written = {"metadata": meta, "spec": {"selector": {}}, "status": status}
    world.api.budgets = [msgspec.convert(written, DisruptionBudget)]
    come(world, claimant("mine", 3))
    assert not ask(world, "x", "mine")[0]
    await look(world)
    assert world.api.evicted == []
    world.api.budgets = []
    ask(world, "x", "mine")
    await look(world)
    assert world.api.evicted == ["p"]


# --- for pods without a GPU -------------------------------------------------------------------------------


def of_cpu(**a_more: Any) -> dict[str, Any]:
    """A root of 8 processors, of which a (namespace x) is guaranteed 4 and b (z) 2."""
    leaves = [
        {"name": "a", "namespaces": ["x"], "min": {"cpu": 4}, **a_more},
        {"name": "b", "namespaces": ["z"], "min": {"cpu": 2}},
    ]
    return {"name": "root", "min": {"cpu": 8}, "max": {"cpu": 8}, "children": leaves}


async def test_a_non_gpu_pod_reclaims_within_its_min_and_reserves_what_is_freed(world: World) -> None:
    world.quotas.upsert(tree(of_cpu()))
    for name, priority in (("p", 1), ("q", 0)):
        come(world, plain("z", name, node="n1", cpu=4, priority=priority))
    come(world, plain("x", "mine", cpu=3))
    assert not ask(world, "x", "mine")[0]
    await look(world)
    assert world.api.evicted == ["q"]
    assert world.events.notes[-1][2] == (
        "evicted for pod x/mine (priority 0): elastic quota root/a reclaims, within its min, what root/b borrowed"
    )
    assert world.api.nominated == []
    ask(world, "x", "mine")
    await look(world)
    assert world.api.evicted == ["q"], "one is enough, and ends already"
    assert not ask(world, "x", "mine")[0], "it is there still"
    world.view.remove_pod(world.view.bound_non_gpu["uid-q"])
    come(world, plain("z", "again", cpu=4))
    assert not ask(world, "z", "again")[0], "what came free is kept"
    assert ask(world, "x", "mine")[0] == ["n1"]
    await bind(world, "x", "mine")
    world.see("mine")
    assert not world.quotas.keeps("uid-mine")
    await look(world)
    assert world.api.evicted == ["q"], "nothing can be reclaimed within its min"


async def test_a_sum_that_a_non_gpu_pod_does_not_use_is_released_in_the_end(world: World) -> None:
    world.quotas.upsert(tree(of_cpu()))
    for name in ("p", "q"):
        come(world, plain("z", name, node="n1", cpu=4))
    come(world, plain("x", "mine", cpu=4))
    ask(world, "x", "mine")
    await look(world)
    (evicted,) = world.api.evicted
    world.view.remove_pod(world.view.bound_non_gpu[f"uid-{evicted}"])
    come(world, plain("z", "again", cpu=4))
    assert not ask(world, "z", "again")[0]
    world.clock.now_s += RESERVED_S
    await look(world)
    assert ask(world, "z", "again")[0] == ["n1"]
    assert "uid-again" in world.retries._hurried


async def test_a_pod_that_is_gone_leaves_the_sum_to_others(world: World) -> None:
    world.quotas.upsert(tree(of_cpu()))
    for name in ("p", "q"):
        come(world, plain("z", name, node="n1", cpu=4))
    come(world, plain("x", "mine", cpu=4))
    ask(world, "x", "mine")
    await look(world)
    world.view.remove_pod(world.view.bound_non_gpu[f"uid-{world.api.evicted[0]}"])
    world.view.remove_pod(world.view.waiting_non_gpu["uid-mine"])
    come(world, plain("z", "again", cpu=4))
    assert ask(world, "z", "again")[0] == ["n1"]


async def test_a_non_gpu_pod_evicts_none_above_its_min_at_its_own_max_or_with_policy_never(
    world: World,
) -> None:
    world.quotas.upsert(tree(of_cpu(max={"cpu": 5})))
    for name in ("p", "q"):
        come(world, plain("z", name, node="n1", cpu=4))
    come(world, plain("x", "large", cpu=5))
    never = plain("x", "never", cpu=1)
    never["spec"]["preemptionPolicy"] = "Never"
    come(world, never)
    for name in ("large", "never"):
        assert not ask(world, "x", name)[0]
    await look(world)
    assert world.api.evicted == []


async def test_a_non_gpu_pod_without_a_place_in_its_policy_evicts_none(world: World) -> None:
    world.quotas.upsert(tree(of_cpu()))
    for name in ("p", "q"):
        come(world, plain("z", name, node="n1", cpu=4))
    come(world, plain("x", "mine", cpu=3))
    world.in_turn = lambda uid, nodes: []
    ask(world, "x", "mine")
    await look(world)
    assert world.api.evicted == []
    world.in_turn = lambda uid, nodes: [nodes]
    ask(world, "x", "mine")
    await look(world)
    assert len(world.api.evicted) == 1


async def test_at_its_max_a_non_gpu_pod_of_higher_priority_evicts_one_of_its_own_quota(
    world: World,
) -> None:
    world.quotas.upsert(tree(of_cpu(max={"cpu": 4})))
    for name, priority in (("low", 0), ("high", 9)):
        come(world, plain("x", name, node="n1", cpu=2, priority=priority))
    come(world, plain("x", "mine", cpu=2, priority=5))
    assert not ask(world, "x", "mine")[0]
    await look(world)
    assert world.api.evicted == ["low"]
    assert world.events.notes[-1][2] == "evicted for pod x/mine (priority 5)"


async def test_a_budget_is_reported_to_a_non_gpu_pod_and_a_failed_eviction_reserves_nothing(
    world: World,
) -> None:
    world.quotas.upsert(tree(of_cpu()))
    for name in ("p", "q"):
        come(world, plain("z", name, node="n1", cpu=4))
    meta = {"name": "all", "namespace": "z", "generation": 1}
    status = {"disruptionsAllowed": 0, "observedGeneration": 1}
    written = {"metadata": meta, "spec": {"selector": {}}, "status": status}
    world.api.budgets = [msgspec.convert(written, DisruptionBudget)]
    come(world, plain("x", "mine", cpu=4))
    ask(world, "x", "mine")
    await look(world)
    assert (world.api.evicted, world.events.notes[-1][:2]) == ([], ("mine", REASON_NO_BUDGET))
    world.api.budgets = []

    def refuse() -> None:
        raise ApiError(500, "InternalError", "etcd", "")

    world.api.before = [refuse]
    ask(world, "x", "mine")
    await look(world)
    assert world.api.evicted == []
    assert not world.quotas.keeps("uid-mine")
    world.clock.now_s += 10
    await look(world)
    assert len(world.api.evicted) == 1, "it is looked at again"


async def test_once_a_non_gpu_pod_is_gone_no_more_pods_are_evicted_for_it(world: World) -> None:
    world.quotas.upsert(tree(of_cpu()))
    for name in ("p", "q", "r", "s"):
        come(world, plain("z", name, node="n1", cpu=2))
    come(world, plain("x", "mine", cpu=4))
    assert not ask(world, "x", "mine")[0]
    world.api.before = [lambda: world.view.remove_pod(world.view.waiting_non_gpu["uid-mine"])]
    await look(world)
    assert len(world.api.evicted) == 1
    assert not world.quotas.keeps("uid-mine")
