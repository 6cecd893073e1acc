"""Suggestions for a pod of a gang."""

import asyncio

import msgspec
import pytest

from gpushare.scheduler.framework.cycle import filter_nodes
from gpushare.scheduler.framework.cycle_state import Bodies
from gpushare.scheduler.plugins.explain import gang_suggestions
from gpushare.scheduler.plugins.gangs.reservations import KEPT_S
from tests.unit.scheduler.elastic_quota.test_quotas import tree
from tests.unit.scheduler.explain.test_decisions import GIB, ask_again, give, suggestion
from tests.unit.scheduler.explain.test_suggestions_for_quotas import WHOLE, limit
from tests.unit.scheduler.gangs.test_gangs import args, ask, gang
from tests.unit.scheduler.resource_policy.policy_world import PolicyWorld
from tests.unit.scheduler.server.test_app import Browser, filter_body
from tests.unit.scheduler.world import World, gpu_node

G = gang("g", 3)
BY_ITSELF = "nothing to do: it is retried automatically"


@pytest.mark.parametrize(("running", "lacking"), [(0, "3 pods"), (1, "2 pods"), (2, "1 pod")])
async def test_room_is_needed_only_for_members_that_do_not_run(
    world: World, running: int, lacking: str
) -> None:
    browser = Browser(world)
    world.add_node(gpu_node("n1", 2 * GIB))
    for number in range(3):
        world.create(f"p{number}", 4, labels=G, node="n2" if number < running else "")
    await ask_again(browser, world, "p2", "n1")

    assert suggestion(world, "p2") == (
        f"capacity for {lacking} of gang default/g at once; there is none even for this pod alone: a node with larger GPUs; or request less"
    )


async def test_a_smaller_number_that_fits_is_suggested(world: World) -> None:
    browser = Browser(world)
    world.add_node(gpu_node("n1", 8 * GIB))
    for number in range(3):
        world.create(f"p{number}", 4, labels=G)
    await ask_again(browser, world, "p2", "n1")

    assert suggestion(world, "p2") == (
        'capacity for 3 pods of gang default/g at once, or pod-group.scheduling.sigs.k8s.io/min-available: "2" on each of its pods: '
        "that many fit now"
    )
    for number in range(3):
        world.api.pods[f"default/p{number}"]["metadata"]["labels"] = gang("g", 2)
        world.see(f"p{number}")
    assert ask(world, "p2", "n1")[0] == ["n1"]


async def test_trying_a_gang_reserves_nothing_and_notifies_nothing(world: World) -> None:
    browser = Browser(world)
    world.add_node(gpu_node("n1", 8 * GIB))
    await give(browser, world, "there", "n1", 4)
    for number in range(2):
        world.create(f"p{number}", 4, labels=gang("g", 2))
    await ask_again(browser, world, "p1", "n1")
    changed: list[None] = []
    world.quotas.changed.subscribe(lambda: changed.append(None))
    before = world.ledger.totals(), world.used_mib("n1")

    assert 'min-available: "1"' in suggestion(world, "p1")

    assert (world.ledger.totals(), world.used_mib("n1")) == before
    assert world.ledger.held("uid-p1") is None
    for name in ("p0", "p1"):
        decision = world.decisions.get(f"uid-{name}")
        assert decision is None or decision.placed is None
    assert not changed


async def test_capacity_freed_for_a_gang_meanwhile_is_reported(world: World) -> None:
    browser = Browser(world)
    world.add_node(gpu_node("n1", 8 * GIB))
    await give(browser, world, "there", "n1", 8)
    for name in "abc":
        world.create(name, 2, labels=gang("g", 2))
        await ask_again(browser, world, name, "n1")
    world.view.remove_pod(world.view.bound["uid-there"])
    assert suggestion(world, "a") == (
        "there is now enough capacity for 2 pods of gang default/g at once; kube-scheduler retries automatically"
    )
    await ask_again(browser, world, "b", "n1")

    assert suggestion(world, "a") == "node n1 has enough capacity now; kube-scheduler retries automatically"
    assert suggestion(world, "c") == BY_ITSELF


async def test_a_gang_that_gives_way_to_others_is_not_advised_to_find_room(world: World) -> None:
    browser = Browser(world)
    world.add_node(gpu_node("n1", 8 * GIB))
    for name in "abc":
        world.create(name, 2, labels=G)
    await ask_again(browser, world, "a", "n1")
    await world.clock.turn(KEPT_S + 20)
    for uid, key in world.reservations.due(world.clock.monotonic())[:1]:
        await world.binder.settle(uid, key)
    assert not any(world.used_mib("n1"))
    await ask_again(browser, world, "b", "n1")

    assert suggestion(world, "b") == BY_ITSELF


async def test_a_pod_being_deleted_needs_nothing(world: World) -> None:
    browser = Browser(world)
    world.add_node(gpu_node("n1", 8 * GIB))
    for name in "abc":
        world.create(name, 2, labels=G)
    world.api.pods["default/c"]["metadata"]["deletionTimestamp"] = "2026-11-22T10:00:00Z"
    world.see("c")
    await ask_again(browser, world, "c", "n1")
    await ask_again(browser, world, "a", "n1")

    assert (
        suggestion(world, "c") == "nothing to do: the pod is being deleted, and its gang continues without it"
    )
    assert suggestion(world, "a") == "1 more pod of gang default/g: 2 of 3 are there"


async def test_late_members_of_a_running_gang_get_the_suggestions_of_any_pod(world: World) -> None:
    browser = Browser(world)
    world.add_node(gpu_node("n1", 8 * GIB))
    for name in "abc":
        world.create(name, 4, labels=gang("g", 2))
    nodes = {name: ask(world, name, "n1")[0] for name in "ab"}
    await ask_again(browser, world, "c", "n1")
    assert suggestion(world, "c") == BY_ITSELF
    await asyncio.gather(*(world.binder.bind(args(name, nodes[name][0])) for name in "ab"))
    for name in "ab":
        world.see(name)

    assert suggestion(world, "c") == (
        "a GPU with 4 GiB free: all GPUs of this kind are full: wait for pods to end, or add a node"
    )


async def test_non_gpu_members_held_back_by_a_quota_are_named_as_the_cause(
    world: World,
) -> None:
    browser = Browser(world)
    world.add_node(gpu_node("n1", 8 * GIB))
    world.quotas.upsert(tree({"name": "r", "max": {"cpu": 4}, "min": {"cpu": 4}, "namespaces": ["default"]}))
    world.quotas.are_read(["default"])
    for name, mem in (("a", 2), ("b", 2), ("c", None)):
        world.create(name, mem, labels=G)
    await ask_again(browser, world, "a", "n1")

    assert suggestion(world, "a") == (
        "the pods of gang default/g without a GPU must be bound first: `kubectl describe pod` shows why they are pending"
    )


ALONE = "request less, or raise the max of elastic quota root/leaf: 2 pods of gang default/g alone exceed it"
ENDS = "wait for pods of elastic quota root/leaf to end, or raise the max of it"
ONE = ', or pod-group.scheduling.sigs.k8s.io/min-available: "1" on each of its pods: that many fit now'


@pytest.mark.parametrize(
    ("free", "leaf", "there", "expected"),
    [
        (12, 6, 2, ALONE),
        (12, 10, 2, ENDS + ONE),
        (
            4,
            10,
            2,
            f"{ENDS}{ONE}; and capacity for 2 pods of gang default/g at once, which is not available now",
        ),
        (12, 6, 1, f"1 more pod of gang default/g: 1 of 2 is there; and then {ALONE}"),
        (12, 10, 1, f"1 more pod of gang default/g: 1 of 2 is there; and then {ENDS}"),
        (12, 12, 1, "1 more pod of gang default/g: 1 of 2 is there"),
    ],
)
async def test_a_quota_that_a_gang_would_exceed_is_named_with_the_sum_of_its_requests(
    world: World, free: int, leaf: int, there: int, expected: str
) -> None:
    browser = Browser(world)
    world.add_node(gpu_node("n1", 4 * GIB, free * GIB))
    await give(browser, world, "there", "n1", 4)
    limit(world, root=30, leaf=leaf)
    for number in range(there):
        world.create(f"p{number}", 4, labels=gang("g", 2))
    await ask_again(browser, world, "p0", "n1")

    assert suggestion(world, "p0") == expected


async def test_whole_gpus_of_a_gang_count_in_its_quota_with_all_their_units(world: World) -> None:
    browser = Browser(world)
    world.add_node(gpu_node("n1", 8 * GIB, 8 * GIB))
    limit(world, root=30, leaf=10)
    for name in "ab":
        world.create(name, 2, labels={**gang("g", 2), **WHOLE})
    await ask_again(browser, world, "a", "n1")

    assert suggestion(world, "a") == ALONE + ONE


async def test_a_pod_whose_request_prevents_the_gang_is_named(world: World) -> None:
    browser = Browser(world)
    world.add_node(gpu_node("n1", 8 * GIB))
    world.create("p", 4, labels=gang("g", 2))
    world.create("wrong", "2.5", labels=gang("g", 2))
    await ask_again(browser, world, "p", "n1")

    assert suggestion(world, "p").startswith(
        "correct the request of pod default/wrong, which blocks gang default/g: "
    )


@pytest.mark.parametrize(
    ("large", "expected"), [(6, "there is now enough capacity for 2 pods"), (9, "capacity for 2 pods")]
)
async def test_another_order_is_tried_if_the_largest_do_not_fit_together(
    world: World, large: int, expected: str
) -> None:
    """Of three pods two have to run: the largest next to the pending one do not fit, the smallest do."""
    browser = Browser(world)
    world.add_node(gpu_node("n1", 8 * GIB))
    await give(browser, world, "there", "n1", 8)
    for name, mem in (("a", 4), ("b", large), ("c", large - 2)):
        world.create(name, mem, labels=gang("g", 2))
    await ask_again(browser, world, "a", "n1")
    world.view.remove_pod(world.view.bound["uid-there"])

    assert suggestion(world, "a").startswith(expected)


async def test_a_gang_that_its_policy_keeps_from_every_node_gets_that_reason() -> None:
    world = PolicyWorld()
    world.in_turn = world.policies.by_unit
    world.add_node(gpu_node("a1", 8 * GIB))
    world.rules({"resource": "ecs", "nodeSelector": {"pool": "b"}})
    for name in ("p", "q"):
        world.make(name, 2, labels=gang("g", 2))
    body = filter_body(world.api.pods["default/p"], "a1")
    filter_nodes(
        world.view,
        Bodies().read(msgspec.json.encode(body)),
        world.framework(world.decisions),
    )

    assert suggestion(world, "p") == (
        "capacity for 2 pods of gang default/g at once; there is none even for this pod alone: "
        "capacity in one of the units of its ResourcePolicy, or another ResourcePolicy"
    )


async def test_for_more_gangs_than_are_tried_at_a_time_less_is_reported(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gang_suggestions, "_MOST_PODS", 3)
    browser = Browser(world)
    world.add_node(gpu_node("n1", 8 * GIB))
    for name in ("a1", "a2", "b1", "b2"):
        world.create(name, 8, labels=gang(name[0], 2))
        await ask_again(browser, world, name, "n1")

    texts = [suggestion(world, name) for name in ("a1", "b1")]

    assert [one.partition(", or ")[0] for one in texts] == [
        "capacity for 2 pods of gang default/a at once",
        "capacity for 2 pods of gang default/b at once",
    ]
    assert texts[1] == "capacity for 2 pods of gang default/b at once"
