"""Room for pods that kube-scheduler has nominated: reserved from the moment when the victims' share suffices."""

import msgspec
import pytest

from gpushare.api import names
from gpushare.scheduler.framework.binder import BindRefused
from gpushare.scheduler.plugins.preemption import nominations as nominated_module
from gpushare.scheduler.plugins.preemption.extender_preempt import preempt_pods
from gpushare.scheduler.plugins.preemption.plugin import RESERVED_S
from gpushare.scheduler.server.protocol import read_preemption
from tests.unit.scheduler.preemption.test_preemption import args, ask, bound, look
from tests.unit.scheduler.world import World, gpu_node


def leaves(world: World, name: str) -> None:
    """Its end was requested."""
    world.api.pods[f"default/{name}"]["metadata"]["deletionTimestamp"] = "2026-11-22T10:00:00Z"
    world.see(name)


def ends(world: World, name: str) -> None:
    record = world.view.bound[f"uid-{name}"]
    del world.api.pods[f"default/{name}"]
    world.view.remove_pod(record)
    world.nominated.pod_removed(record)


def nominates(world: World, name: str, node: str = "n1") -> None:
    world.api.pods[f"default/{name}"]["status"]["nominatedNodeName"] = node
    world.see(name)


async def filled(world: World) -> None:
    """Two less important pods that leave nothing free."""
    for name in ("a", "b"):
        await bound(world, name, 8, priority=1)


async def test_while_victims_end_one_by_one_no_other_pod_takes_what_the_first_freed(
    world: World,
) -> None:
    await filled(world)
    world.create("high", 16, priority=9)
    nominates(world, "high")
    assert world.ledger.nominations.node_of("uid-high") == "", "no pod terminates yet"
    leaves(world, "a")
    assert world.ledger.nominations.node_of("uid-high") == ""
    leaves(world, "b")
    assert world.ledger.nominations.node_of("uid-high") == "n1"
    ends(world, "a")
    world.create("thief", 8)
    assert ask(world, "thief") == []
    with pytest.raises(BindRefused):
        await world.binder.bind(args("thief"))
    ends(world, "b")
    assert ask(world, "thief") == []
    assert ask(world, "high") == ["n1"]
    await world.binder.bind(args("high"))
    world.see("high")
    assert world.ledger.nominations.node_of("uid-high") == ""


async def test_of_two_the_higher_priority_gets_the_reservation_and_the_other_when_more_leaves(
    world: World,
) -> None:
    await filled(world)
    for name, priority in (("high", 5), ("higher", 9)):
        world.create(name, 8, priority=priority)
        nominates(world, name)
    leaves(world, "a")
    assert (world.ledger.nominations.node_of("uid-high"), world.ledger.nominations.node_of("uid-higher")) == (
        "",
        "n1",
    )
    ends(world, "a")
    ends(world, "b")
    assert world.ledger.nominations.node_of("uid-high") == "n1"


async def test_an_unused_reservation_is_released_and_not_made_again_for_the_same_nomination(
    world: World,
) -> None:
    world.create("high", 8, priority=9)
    nominates(world, "high")
    assert world.ledger.nominations.node_of("uid-high") == "n1"
    await world.clock.turn(RESERVED_S)
    await look(world)
    assert world.ledger.nominations.node_of("uid-high") == ""
    world.see("high")
    assert world.ledger.nominations.node_of("uid-high") == ""
    del world.api.pods["default/high"]["status"]["nominatedNodeName"]
    world.see("high")
    nominates(world, "high")
    assert world.ledger.nominations.node_of("uid-high") == "n1"
    world.add_node(gpu_node("n2", 16384))
    nominates(world, "high", "n2")
    assert world.ledger.nominations.node_of("uid-high") == "n1", "one of them is enough"


async def test_a_nominated_pod_that_is_deleted_served_or_in_a_gang_is_not_followed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(world)
    world.create("gone", 8)
    nominates(world, "gone")
    world.view.remove_pod(world.view.waiting["uid-gone"])
    gang = {names.LABEL_GANG_NAME: "g", names.LABEL_GANG_LEAST: "1"}
    world.create("member", 8, labels=gang)
    world.create("wrong", 8, core=7)
    for name in ("member", "wrong"):
        nominates(world, name)
    leaves(world, "a")
    assert not any(world.ledger.nominations.node_of(f"uid-{name}") for name in ("gone", "member", "wrong"))
    monkeypatch.setattr(nominated_module, "_REMEMBERED", 1)
    for name in ("first", "second"):
        world.create(name, 16)
        nominates(world, name)
    ends(world, "a")
    ends(world, "b")
    assert (
        world.ledger.nominations.node_of("uid-first"),
        world.ledger.nominations.node_of("uid-second"),
    ) == ("", "n1")


async def test_no_room_is_reserved_for_a_pod_held_back_by_its_elastic_quota(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.quotas, "refusal", lambda uid: "its quota has no more")
    world.create("high", 8)
    nominates(world, "high")
    assert world.ledger.nominations.node_of("uid-high") == ""
    monkeypatch.setattr(world.quotas, "refusal", lambda uid: "")
    await bound(world, "a", 4)
    ends(world, "a")
    assert world.ledger.nominations.node_of("uid-high") == "n1"


async def test_if_kube_scheduler_evicts_more_pods_the_reservation_is_the_preemptors_own(
    world: World,
) -> None:
    await filled(world)
    world.create("high", 8, priority=9)
    assert not ask(world, "high")
    await look(world)
    assert world.api.evicted == ["b"]
    world.see("b")
    # By its sums of CPU a non-GPU pod has to be evicted, too.
    victims = {"Pods": [{"UID": "uid-of-no-gpu"}], "NumPDBViolations": 0}
    body = {"Pod": world.api.pods["default/high"], "NodeNameToMetaVictims": {"n1": victims}}
    answer = preempt_pods(
        world.view, read_preemption(msgspec.json.encode(body)), lambda uid: None, quotas=world.quotas
    )
    answered = msgspec.json.decode(answer)["NodeNameToMetaVictims"]
    assert answered == {"n1": victims}, "a stays"
    assert world.ledger.nominations.node_of("uid-high") == "n1"


async def test_nothing_is_reserved_for_a_nominated_pod_that_is_being_deleted(world: World) -> None:
    await filled(world)
    world.create("high", 16, priority=9)
    nominates(world, "high")
    leaves(world, "high")
    for name in ("a", "b"):
        leaves(world, name)
    assert world.ledger.nominations.node_of("uid-high") == ""
