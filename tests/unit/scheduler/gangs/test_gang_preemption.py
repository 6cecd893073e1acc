"""A gang of higher priority evicts for all of its pods or evicts none, and reservations of lower-priority pods give way."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from gpushare.api import names
from gpushare.api.allocation.allocation import Allocation, share_of
from gpushare.api.disruption import decode_budget
from gpushare.kube.client.errors import ApiError
from gpushare.scheduler.cache.pod_records import PodRecord
from gpushare.scheduler.plugins.gangs.plugin import PATIENCE_S
from gpushare.scheduler.plugins.preemption.plugin import RESERVED_S
from tests.unit.scheduler.preemption.test_preemption import ask, bound, end, kube_scheduler_ends, look
from tests.unit.scheduler.world import World, gpu_node


def member(world: World, name: str, units: int, *, least: int = 2, **more: object) -> None:
    labels = {names.LABEL_GANG_NAME: "g", names.LABEL_GANG_LEAST: str(least)}
    world.create(name, units, labels=labels, **more)


def add_gpus(world: World, *sizes_mib: int) -> None:
    world.add_node(gpu_node("n2", *sizes_mib))


async def filled(world: World) -> None:
    """n1 and n2 with a pod of 12 of 16 on each of their three GPUs."""
    add_gpus(world, 16384, 16384)
    await bound(world, "low-0", 12, "n1", priority=1)
    await bound(world, "low-1", 12, "n2", priority=2)
    await bound(world, "low-2", 12, "n2", priority=3)


def ask_both(world: World, *pods: str) -> list[list[str]]:
    return [ask(world, name, "n1", "n2") for name in pods]


async def test_a_gang_evicts_as_few_as_let_all_of_it_in_and_each_once(world: World) -> None:
    await filled(world)
    for name in ("g-0", "g-1"):
        member(world, name, 10, priority=9)
    assert ask_both(world, "g-0", "g-1") == [[], []]
    await look(world)
    assert sorted(world.api.evicted) == ["low-0", "low-1"]
    assert sorted(name for name, _ in world.api.nominated) == ["g-0", "g-1"]
    # Offered again meanwhile, no more pods are evicted, and another pod gets nothing of the capacity.
    assert ask_both(world, "g-0", "g-1") == [[], []]
    end(world, "low-0")
    world.create("thief", 8)
    assert ask(world, "thief", "n1", "n2") == []
    assert ask_both(world, "g-0", "g-1") == [[], []]
    await look(world)
    assert len(world.api.evicted) == 2
    end(world, "low-1")
    found = ask_both(world, "g-0", "g-1")
    assert sorted(node for (node,) in found) == ["n1", "n2"]
    assert [world.ledger.nominations.node_of(f"uid-{name}") for name in ("g-0", "g-1")] == ["", ""]


async def test_one_victim_may_be_enough_for_two(world: World) -> None:
    await bound(world, "low", 16, priority=1)
    for name in ("g-0", "g-1"):
        member(world, name, 8, priority=9)
        ask(world, name)
    await look(world)
    assert world.api.evicted == ["low"]


async def test_no_pod_is_evicted_if_not_all_of_the_gang_would_fit(world: World) -> None:
    await filled(world)
    for name in ("g-0", "g-1", "g-2", "g-3"):
        member(world, name, 10, least=4, priority=9)
    ask_both(world, "g-0", "g-1", "g-2", "g-3")
    await look(world)
    assert world.api.evicted == []
    assert not any(world.ledger.nominations.node_of(f"uid-g-{number}") for number in range(4))


async def test_no_pod_is_evicted_for_a_gang_with_a_member_that_may_not_preempt(world: World) -> None:
    await filled(world)
    member(world, "g-0", 8, priority=9)
    member(world, "g-1", 8, priority=9, never=True)
    ask_both(world, "g-0", "g-1")
    await look(world)
    assert world.api.evicted == []


async def test_pods_protected_by_a_budget_stay_for_a_gang_too(world: World) -> None:
    add_gpus(world, 16384)
    await bound(world, "low-0", 12, "n1", priority=1)
    await bound(world, "guarded", 12, "n2", priority=1, labels={"app": "db"})
    budget = {
        "metadata": {"name": "db", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "db"}}},
        "status": {"disruptionsAllowed": 0},
    }
    world.api.budgets = [decode_budget(msgspec.json.encode(budget))]
    for name in ("g-0", "g-1"):
        member(world, name, 10, priority=9)
    ask_both(world, "g-0", "g-1")
    await look(world)
    assert world.api.evicted == []
    assert world.events.notes[-1][1] == "PreemptionRefused"
    assert not world.ledger.nominations.node_of("uid-g-0")


@pytest.mark.parametrize("failing", ["budgets", "eviction"])
async def test_a_failure_releases_all_of_the_gangs_room(world: World, failing: str) -> None:
    await filled(world)
    for name in ("g-0", "g-1"):
        member(world, name, 8, priority=9)
    ask_both(world, "g-0", "g-1")
    world.preemptor.left_to_scheduler("uid-g-1")  # one look

    def fail() -> None:
        raise ApiError(429, "TooManyRequests", "later", "")

    (world.api.reading if failing == "budgets" else world.api.before).append(fail)
    await look(world)
    assert world.api.evicted == []
    assert not any(world.ledger.nominations.node_of(f"uid-g-{number}") for number in range(2))


async def test_a_node_that_changes_while_budgets_are_read_stops_it(world: World) -> None:
    await filled(world)
    for name in ("g-0", "g-1"):
        member(world, name, 8, priority=9)
    ask_both(world, "g-0", "g-1")
    world.preemptor.left_to_scheduler("uid-g-1")  # one look
    world.api.reading.append(lambda: world.add_node(gpu_node("n1", 16384, 16384)))
    await look(world)
    assert world.api.evicted == []
    assert not any(world.ledger.nominations.node_of(f"uid-g-{number}") for number in range(2))


async def test_the_successor_of_a_running_gangs_pod_preempts_alone(world: World) -> None:
    add_gpus(world, 16384)
    for name in ("g-0", "g-1"):
        member(world, name, 8, priority=9)
    await bound(world, "low", 8, "n1", priority=1)
    await bound(world, "other", 16, "n2", priority=5)
    world.gangs._patience_s = PATIENCE_S
    for name in ("g-0", "g-1"):
        pod = world.api.pods[f"default/{name}"]
        pod["spec"]["nodeName"] = "elsewhere"
        world.see(name)
    member(world, "g-2", 16, priority=9)
    assert ask(world, "g-2", "n1", "n2") == []
    await look(world)
    assert world.api.evicted == ["low"]


async def test_gangs_that_wait_for_something_else_evict_no_pod(world: World) -> None:
    await filled(world)
    member(world, "g-0", 8, priority=9)
    ask_both(world, "g-0")
    await look(world)
    assert world.gangs.wanting("uid-unknown", ["n1"]) == []
    assert world.gangs.together_with("uid-unknown") == ["uid-unknown"]
    member(world, "g-1", 8, priority=9)
    group = world.gangs._groups["default/g"]
    group.rests_until_s = world.clock.now_s + 1000
    assert world.gangs.wanting("uid-g-0", ["n1", "n2"]) == []
    group.rests_until_s = 0.0
    assert world.gangs.wanting("uid-g-0", ["n1", "n2"]) == [], "g-1 was never tried"
    ask_both(world, "g-1")
    assert len(world.gangs.wanting("uid-g-0", ["n1", "n2"])) == 2
    # One invalid pod leaves too few.
    world.api.pods["default/g-1"]["spec"]["containers"][0]["resources"] = {
        "limits": {"aliyun.com/gpu-core.percentage": 5}
    }
    world.see("g-1")
    assert world.gangs.wanting("uid-g-0", ["n1", "n2"]) == []
    assert world.api.evicted == []


async def test_room_reserved_for_a_lower_priority_pod_goes_to_one_of_higher_priority(world: World) -> None:
    add_gpus(world, 16384)
    await bound(world, "low", 16, "n1", priority=1)
    await bound(world, "stays", 16, "n2", priority=50)
    world.create("middle", 12, priority=5)
    ask(world, "middle", "n1", "n2")
    await look(world)
    assert (world.api.evicted, world.ledger.nominations.node_of("uid-middle")) == (["low"], "n1")
    end(world, "low")
    world.create("high", 12, priority=9)
    assert ask(world, "high", "n1", "n2") == []
    await look(world)
    assert world.api.evicted == ["low"]
    assert (world.ledger.nominations.node_of("uid-middle"), world.ledger.nominations.node_of("uid-high")) == (
        "",
        "n1",
    )
    assert ask(world, "middle", "n1", "n2") == []
    assert ask(world, "high", "n1", "n2") == ["n1"]


async def test_room_next_to_a_reservation_is_used_first(world: World) -> None:
    add_gpus(world, 16384)
    await bound(world, "low", 16, "n1", priority=1)
    await bound(world, "low-2", 16, "n2", priority=2)
    world.create("middle", 4, priority=5)
    ask(world, "middle", "n1", "n2")
    await look(world)
    assert world.ledger.nominations.node_of("uid-middle") == "n1"
    world.see("low")
    world.create("high", 12, priority=9)
    ask(world, "high", "n1", "n2")
    await look(world)
    assert (world.ledger.nominations.node_of("uid-middle"), world.ledger.nominations.node_of("uid-high")) == (
        "n1",
        "n1",
    )
    assert world.api.evicted == ["low"]


async def test_a_reservation_stays_where_releasing_it_saves_no_victim(world: World) -> None:
    add_gpus(world, 16384)
    await bound(world, "low", 16, "n1", priority=1)
    await bound(world, "low-2", 16, "n2", priority=2)
    world.create("middle", 12, priority=5)
    ask(world, "middle", "n1")
    await look(world)
    world.create("high", 12, priority=9)
    ask(world, "high", "n2")
    await look(world)
    assert world.api.evicted == ["low", "low-2"]
    assert (world.ledger.nominations.node_of("uid-middle"), world.ledger.nominations.node_of("uid-high")) == (
        "n1",
        "n2",
    )


async def test_reservations_of_a_lower_priority_gang_give_way_as_a_whole(world: World) -> None:
    await filled(world)
    for name in ("g-0", "g-1"):
        member(world, name, 16, priority=5)
    ask_both(world, "g-0", "g-1")
    await look(world)
    assert sorted(world.api.evicted) == ["low-0", "low-1"]
    end(world, "low-0")
    end(world, "low-1")
    world.create("high", 16, priority=9)
    ask(world, "high", "n1")
    await look(world)
    assert world.ledger.nominations.node_of("uid-high") == "n1"
    assert not any(world.ledger.nominations.node_of(f"uid-g-{number}") for number in range(2))
    await world.clock.turn(RESERVED_S + 1)
    await look(world)
    assert world.ledger.nominations.node_of("uid-high") == ""


async def test_no_pod_is_evicted_on_a_node_that_another_member_was_never_offered(
    world: World,
) -> None:
    """Other rules of the scheduler (a selector) are known by the nodes that were offered."""
    world.add_node(gpu_node("n1", 16384, 16384))
    add_gpus(world, 16384)
    for number in range(2):
        await bound(world, f"low-{number}", 16, "n1", priority=1)
    await bound(world, "stays", 16, "n2", priority=99)
    for name in ("g-0", "g-1"):
        member(world, name, 16, priority=9)
    assert ask(world, "g-0", "n1") == []
    await look(world)
    assert world.api.evicted == []
    assert ask(world, "g-1", "n2") == []
    await look(world)
    assert world.api.evicted == []
    # Once it may have another, all of it is looked at again.
    assert ask(world, "g-1", "n1", "n2") == []
    await look(world)
    assert sorted(world.api.evicted) == ["low-0", "low-1"]


async def test_a_surplus_member_that_is_never_tried_does_not_prevent_preemption(world: World) -> None:
    await filled(world)
    for name in ("never", "g-0", "g-1"):
        member(world, name, 10, priority=9)
    assert ask_both(world, "g-0", "g-1") == [[], []]
    await look(world)
    assert sorted(world.api.evicted) == ["low-0", "low-1"]


async def test_a_pod_refused_for_a_quota_counts_as_offered(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(world)
    for name in ("g-0", "g-1"):
        member(world, name, 10, priority=9)
    monkeypatch.setattr(world.quotas, "pre_filter", lambda state: "its quota")
    ask_both(world, "g-0", "g-1")
    monkeypatch.undo()
    assert len(world.gangs.wanting("uid-g-0", ["n1", "n2"])) == 2


async def test_no_pod_is_evicted_for_a_gang_whose_tried_member_is_being_deleted(world: World) -> None:
    await filled(world)
    for name in ("g-0", "g-1", "g-2"):
        member(world, name, 10, priority=9)
        ask_both(world, name)
    ask_both(world, "g-0", "g-1", "g-2")
    world.api.pods["default/g-0"]["metadata"]["deletionTimestamp"] = "2026-11-22T10:00:00Z"
    world.see("g-0")
    assert world.gangs.wanting("uid-g-0", ["n1", "n2"]) == []
    found = world.gangs.wanting("uid-g-1", ["n1", "n2"])
    assert sorted(one.record.uid for one in found) == ["uid-g-1", "uid-g-2"]


async def between_two_plans(
    world: World, monkeypatch: pytest.MonkeyPatch, come: Callable[[], object]
) -> None:
    """Run ``come`` when the first of two plans for a gang is made, and let the preemptor run once."""
    await filled(world)
    for name in ("g-0", "g-1"):
        member(world, name, 10, priority=9)
    ask_both(world, "g-0", "g-1")
    world.preemptor.left_to_scheduler("uid-g-1")  # one look
    keep, added = world.ledger.nominations.add, list[str]()

    def keeping(uid: str, *more: Any) -> None:
        keep(uid, *more)
        added.append(uid)
        if len(added) == 1:
            asyncio.get_running_loop().call_soon(lambda: (added.append("another's turn"), come()))

    monkeypatch.setattr(world.ledger.nominations, "add", keeping)
    await look(world)
    assert added[1] == "another's turn"


async def test_others_get_their_turn_between_the_plans_for_a_gang(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A pod offered in between gets nothing of the room that was found already.
    answers: list[list[str]] = []
    world.create("thief", 4)
    await between_two_plans(world, monkeypatch, lambda: answers.append(ask(world, "thief", "n1")))
    assert answers == [[]]
    assert sorted(world.api.evicted) == ["low-0", "low-1"]


def _member_goes(world: World) -> None:
    world.view.remove_pod(world.view.waiting["uid-g-0"])


def _member_is_less_important(world: World) -> None:
    world.api.pods["default/g-0"]["spec"]["priority"] = 8
    world.see("g-0")


def _stranger_comes(world: World) -> None:
    """Another scheduler binds a pod to each of the GPUs, which cannot be prevented."""
    for node, gpu in (("n1", 0), ("n2", 0), ("n2", 1)):
        device = world.ledger.node(node).devices[gpu]  # type: ignore[union-attr]
        allocation = Allocation((share_of(device, 16, 4, 0),), {})
        world.view.upsert_pod(
            PodRecord(f"stranger-{node}-{gpu}", "x/y", node, finished=False, allocation=allocation)
        )


@pytest.mark.parametrize("come", [_member_goes, _member_is_less_important, _stranger_comes])
async def test_changes_between_the_plans_for_a_gang_lead_to_no_eviction(
    world: World, monkeypatch: pytest.MonkeyPatch, come: Callable[[World], None]
) -> None:
    await between_two_plans(world, monkeypatch, lambda: come(world))
    assert world.api.evicted == []
    assert not any(world.ledger.nominations.node_of(f"uid-g-{number}") for number in range(2))


async def test_once_a_member_is_gone_no_more_pods_are_evicted_for_the_gang(world: World) -> None:
    await filled(world)
    for name in ("g-0", "g-1"):
        member(world, name, 10, priority=9)
    assert ask_both(world, "g-0", "g-1") == [[], []]
    # While the first eviction is requested, for whichever of the two.
    world.api.before = [lambda: world.view.remove_pod(world.view.waiting["uid-g-1"])]
    await look(world)
    assert len(world.api.evicted) == 1
    assert [world.ledger.nominations.node_of(f"uid-{name}") for name in ("g-0", "g-1")] == ["", ""]


async def test_a_gang_with_a_member_nominated_by_kube_scheduler_evicts_no_pod(world: World) -> None:
    await filled(world)
    for name in ("g-0", "g-1"):
        member(world, name, 10, priority=9)
    assert ask_both(world, "g-0", "g-1") == [[], []]
    world.api.reading = [lambda: kube_scheduler_ends(world, "g-0", "low-2", "n2")]
    await look(world)
    assert not world.api.reading
    assert not world.api.evicted
    assert [world.ledger.nominations.node_of(f"uid-{name}") for name in ("g-0", "g-1")] == ["", ""]
