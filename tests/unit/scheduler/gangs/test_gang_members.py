"""Which pods count as members: not terminating ones; succeeded ones as long as they exist; and of a surplus those that fit."""

import asyncio
from random import Random

import pytest

from gpushare.scheduler.framework.binder import BindRefused
from gpushare.scheduler.plugins.gangs.backoff import REST_S
from gpushare.scheduler.plugins.gangs.reservations import KEPT_S
from tests.unit.scheduler.gangs.test_gangs import args, ask, gang, used
from tests.unit.scheduler.world import Api, World, gpu_node, pod_object

G = gang("g", 3)


@pytest.fixture
def two(world: World) -> World:
    """Two nodes with one GPU of 16 GiB each."""
    world.add_node(gpu_node("n2", 16384))
    world.gangs._patience_s = 0.05
    return world


async def run(world: World, *names: str, units: int = 4) -> None:
    """Have a gang of three run, seen by the informer."""
    for name in names:
        if f"default/{name}" not in world.api.pods:
            world.create(name, units, labels=G)
    nodes = {name: ask(world, name)[0][0] for name in names}
    await asyncio.gather(*(world.binder.bind(args(name, nodes[name])) for name in names))
    for name in names:
        world.see(name)


def delete(world: World, name: str) -> None:
    """As in the API server: the object exists until its containers have ended."""
    world.api.pods[f"default/{name}"]["metadata"]["deletionTimestamp"] = "2026-11-22T10:00:00Z"
    world.see(name)


def finish(world: World, name: str, phase: str) -> None:
    world.api.pods[f"default/{name}"]["status"]["phase"] = phase
    world.see(name)


# --- terminating members --------------------------------------------------------------------------


async def test_successors_of_a_terminating_gang_are_placed_together_or_not_at_all(two: World) -> None:
    """A drained node: its pods take half a minute to end, and their controller creates others immediately."""
    await run(two, "a", "b", "c", units=5)
    for name in "abc":
        delete(two, name)
    for name in "de":
        two.create(name, 5, labels=G)
    assert ask(two, "d")[1] == {"gang default/g needs 3 pods together: there are 2"}
    two.create("f", 5, labels=G)
    node = two.ledger.held("uid-a").node  # type: ignore[union-attr]
    other = "n2" if node == "n1" else "n1"
    two.create("filler", 6)
    await two.binder.bind(args("filler", other))
    for name in "def":
        fits, reasons = ask(two, name, other)
        assert not fits
        assert all("needs capacity for 3 pods at once, and there is capacity for 2" in one for one in reasons)
    for name in "abc":
        two.view.remove_pod(two.view.bound[f"uid-{name}"])
    for name in "def":
        ask(two, name)
    await run(two, "d", "e", "f")


async def test_the_successor_of_a_terminating_pod_needs_no_other_while_the_others_stay(two: World) -> None:
    await run(two, "a", "b", "c")
    delete(two, "c")
    two.create("d", 4, labels=G)
    (node,), _ = ask(two, "d")
    await two.binder.bind(args("d", node))
    assert len(two.api.bindings) == 4


async def test_two_successors_of_terminating_pods_come_together(two: World) -> None:
    await run(two, "a", "b", "c")
    delete(two, "c")
    delete(two, "b")
    two.create("d", 4, labels=G)
    assert ask(two, "d")[1] == {"gang default/g needs 3 pods together: there are 2"}
    two.create("e", 4, labels=G)
    nodes = {name: ask(two, name)[0][0] for name in "de"}
    with pytest.raises(BindRefused, match="2 of 3 pods are ready to be bound"):
        await two.binder.bind(args("d", nodes["d"]))
    await asyncio.gather(*(two.binder.bind(args(name, nodes[name])) for name in "de"))


async def test_reservations_for_too_few_are_released_when_a_running_member_terminates(two: World) -> None:
    await run(two, "a", "b", "c")
    finish(two, "c", "Failed")
    two.create("d", 4, labels=G)
    assert ask(two, "d")[0]
    assert used(two) == 3 * 4096
    delete(two, "b")
    assert used(two) == 2 * 4096, "d alone would be too few"


async def test_a_waiting_pod_that_is_being_deleted_is_no_member(two: World) -> None:
    for name in "abc":
        two.create(name, 4, labels=G)
    assert ask(two, "a")[0]
    assert used(two) == 3 * 4096
    delete(two, "c")
    assert used(two) == 0
    assert ask(two, "c")[1] == {"gang default/g: this pod is being deleted"}
    with pytest.raises(BindRefused, match="gang default/g: this pod is being deleted"):
        await two.binder.bind(args("c", "n1"))
    assert ask(two, "a")[1] == {"gang default/g needs 3 pods together: there are 2"}
    hurried: list[str] = []
    two.gangs.retry_wanted.subscribe(hurried.extend)
    two.create("d", 4, labels=G)
    assert hurried == ["uid-a", "uid-b", "uid-d"]
    status = two.gangs.standing("uid-a")
    assert status is not None
    assert status.there == 3
    assert two.gangs.standing("uid-unknown") is None
    await run(two, "a", "b", "d")


# --- succeeded members ----------------------------------------------------------------------------


def of_job(api: Api, name: str, job: str) -> None:
    """A pod created by a Job."""
    made = pod_object(name, 4, labels=G)
    made["metadata"]["ownerReferences"] = [
        {"kind": "Job", "name": "j", "uid": "other"},
        {"kind": "Job", "name": "j", "uid": job, "controller": True},
    ]
    api.create(made)


@pytest.mark.parametrize("restarted", [False, True])
async def test_the_successor_of_a_failed_pod_starts_though_others_have_succeeded(
    two: World, restarted: bool
) -> None:
    for name in "abc":
        of_job(two.api, name, "job-1")
        two.see(name)
    await run(two, "a", "b", "c")
    for name, phase in (("a", "Succeeded"), ("b", "Failed")):
        finish(two, name, phase)
    of_job(two.api, "b2", "job-1")
    world = two
    if restarted:
        world = World(two.api, two.clock)
        for node in ("n1", "n2"):
            world.add_node(gpu_node(node, 16384))
        for name in ("b2", "c", "b", "a"):
            world.see(name)
    else:
        world.see("b2")
    (node,), _ = ask(world, "b2")
    await world.binder.bind(args("b2", node))
    assert world.api.bindings[-1] == ("default/b2", node)


async def test_a_succeeded_pod_counts_until_it_is_deleted(two: World) -> None:
    await run(two, "a", "b", "c")
    for name, phase in (("a", "Succeeded"), ("b", "Failed")):
        finish(two, name, phase)
    last = two.gangs._groups["default/g"].pods["uid-c"]
    two.create("d", 4, labels=G)
    assert ask(two, "d")[0]
    assert used(two) == 2 * 4096
    two.gangs.remove("uid-a")
    assert used(two) == 4096, "d alone would be too few"
    assert ask(two, "d")[1] == {"gang default/g needs 3 pods together: there are 2"}
    two.view.remove_pod(last)
    two.view.remove_pod(two.view.waiting["uid-d"])
    assert len(two.gangs) == 0


async def test_a_deleted_pod_that_exits_with_0_does_not_count(two: World) -> None:
    """As a whole drained gang may: their successors run together or not at all."""
    await run(two, "a", "b", "c")
    for name in "abc":
        two.api.pods[f"default/{name}"]["metadata"]["deletionTimestamp"] = "2026-11-22T10:00:00Z"
        two.see(name)
        finish(two, name, "Succeeded")
    two.create("d", 4, labels=G)
    assert ask(two, "d")[1] == {"gang default/g needs 3 pods together: there is 1"}


async def test_pods_of_an_earlier_run_of_the_same_name_do_not_count(two: World) -> None:
    """A CronJob's last run is kept for inspection, and its pods' labels are those of the next."""
    for name in "abc":
        of_job(two.api, name, "job-1")
        two.see(name)
    await run(two, "a", "b", "c")
    for name in "abc":
        finish(two, name, "Succeeded")
    for name in "de":
        of_job(two.api, name, "job-2")
        two.see(name)
    assert ask(two, "d")[1] == {"gang default/g needs 3 pods together: there are 2"}


async def test_reserved_room_of_a_pod_stays_when_another_has_succeeded(two: World) -> None:
    for name in "abc":
        two.create(name, 4, labels=G)
    nodes = {name: ask(two, name)[0][0] for name in "abc"}
    with pytest.raises(BindRefused):
        await two.binder.bind(args("c", nodes["c"]))
    await asyncio.gather(*(two.binder.bind(args(name, nodes[name])) for name in "ab"))
    for name in "ab":
        two.see(name)
    finish(two, "a", "Succeeded")
    assert two.ledger.held("uid-c") is not None
    assert ask(two, "c")[0] == [nodes["c"]]
    await two.binder.bind(args("c", nodes["c"]))


# --- surplus members ------------------------------------------------------------------------------


async def test_a_pod_that_fits_nowhere_does_not_block_enough_others(two: World) -> None:
    two.create("big", 17, labels=G)
    for name in "abcd":
        two.create(name, 4, labels=G)
    found = {name: ask(two, name)[0] for name in ("a", "b", "c", "d", "big")}
    assert [name for name, nodes in found.items() if nodes] == ["a", "b", "c"]
    assert used(two) == 3 * 4096
    await asyncio.gather(*(two.binder.bind(args(name, found[name][0])) for name in "abc"))
    for name in "abc":
        two.see(name)
    assert ask(two, "d")[0]
    assert not ask(two, "big")[0]


async def test_the_smallest_get_their_room_if_not_all_fit(two: World) -> None:
    for name, units in (("a", 2), ("b", 15), ("c", 15), ("d", 14), ("e", 13)):
        two.create(name, units, labels=gang("g", 4))
    assert not ask(two, "a")[0], "three of the others never have room beside it"
    assert used(two) == 0
    for name, units in (("f", 1), ("g", 1)):
        two.create(name, units, labels=gang("g", 4))
    assert ask(two, "a")[0]
    assert used(two) == (2 + 1 + 1 + 13) * 1024
    # The offered pod is one of them, or none is placed.
    two.create("h", 17, labels=gang("g", 4))
    assert not ask(two, "h")[0]


async def test_a_member_that_may_have_no_room_gives_its_place_to_another(two: World) -> None:
    """For example due to its elastic quota, before or after it found room."""
    for name in ("no", "neither", "a", "b"):
        two.create(name, 4 if name in "ab" else 5, labels=gang("g", 2))
    two.quotas.refusal = lambda uid: "its quota" if uid == "uid-no" else ""
    two.quotas.passed = lambda uid: "its quota" if uid == "uid-neither" else ""
    assert ask(two, "a")[0]
    assert used(two) == 2 * 4096
    assert ask(two, "no")[0] == []


async def test_of_many_identical_requests_one_is_examined(
    two: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    two.create("a", 4, labels=gang("g", 30))
    for number in range(100):
        two.create(f"b{number}", 8, labels=gang("g", 30))
    looks = 0
    best = two.ledger.best

    def counted(*arguments: object) -> str | None:
        nonlocal looks
        looks += 1
        return best(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(two.ledger, "best", counted)
    assert not ask(two, "a")[0]
    assert looks == 10, "three of 8 fit beside a, twice, and a fourth does not"


async def test_a_gang_that_misses_by_one_is_refused_without_a_trial(
    two: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(9):
        two.create(f"p{number}", 4, labels=gang("g", 9))
    reserved: list[object] = []
    monkeypatch.setattr(two.ledger, "reserve", lambda *arguments: reserved.append(arguments))
    for number in range(9):
        fits, reasons = ask(two, f"p{number}")
        assert not fits
        text = "gang default/g needs capacity for 9 pods at once, and there is capacity for 8: the capacity here is needed by other pods of the gang"
        assert reasons == {text}
    assert not reserved


async def test_a_pod_that_is_still_being_bound_needs_no_other_room(two: World) -> None:
    for number in range(9):
        two.create(f"p{number}", 4, labels=gang("g", 9))
    request = two.view.waiting["uid-p3"].request
    assert request is not None
    two.ledger.reserve("uid-p3", "default/p3", request, "n1")
    two.add_node(gpu_node("n3", 4096))
    assert ask(two, "p0", "n1", "n2", "n3")[0]
    assert used(two) == 8 * 4096


def test_pods_that_are_offered_the_same_nodes_in_any_order_share_one_list(world: World) -> None:
    nodes = [f"m{number}" for number in range(100)]
    for number in range(50):
        world.create(f"p{number}", 4, labels=gang("g", 50))
    for number in range(50):
        ask(world, f"p{number}", *Random(number).sample(nodes, len(nodes)))
    offered = world.gangs._groups["default/g"].offered
    assert len(offered) == 50
    assert len({id(names) for names in offered.values()}) == 1
    ask(world, "p7", *nodes[1:], "other")
    assert set(offered["uid-p7"]) == {*nodes[1:], "other"}
    assert set(offered["uid-p8"]) == {*nodes}


async def test_members_that_were_offered_come_before_one_that_never_is(two: World) -> None:
    """Other rules of the scheduler keep it from every node, and an extender is not called for it."""
    two.create("never", 4, labels=gang("g", 2))
    for name in "ab":
        two.create(name, 4, labels=gang("g", 2))
    (node,), _ = ask(two, "a")
    assert two.ledger.held("uid-never") is not None
    assert not ask(two, "b")[0]
    with pytest.raises(BindRefused):
        await two.binder.bind(args("a", node))
    await two.clock.turn(KEPT_S + 20)
    for uid, key in two.reservations.due(two.clock.monotonic()):
        await two.binder.settle(uid, key)
    await two.clock.turn(REST_S)
    two.gangs.wake()
    nodes = {name: ask(two, name)[0][0] for name in "ab"}
    await asyncio.gather(*(two.binder.bind(args(name, nodes[name])) for name in "ab"))
    assert len(two.api.bindings) == 2
