"""Gangs that never come together hold capacity only briefly, however many there are."""

import itertools

import msgspec
import pytest

from gpushare.scheduler.framework.cycle import filter_nodes
from gpushare.scheduler.framework.cycle_state import Bodies
from gpushare.scheduler.plugins.gangs.backoff import MOST_REST_S, REST_S, Rests
from gpushare.scheduler.plugins.gangs.reservations import KEPT_S, UNASKED_S
from tests.unit.scheduler.gangs.test_gangs import gang
from tests.unit.scheduler.world import World, gpu_node

#: Seconds for which a reservation outlasts the last offer, and some more.
RESERVED_S = 20


@pytest.fixture
def two(world: World) -> World:
    """Two nodes with one GPU of 16 GiB each."""
    world.add_node(gpu_node("n2", 16384))
    return world


def ask(world: World, name: str) -> tuple[list[str], str]:
    body = {"Pod": world.api.pods[world.api.key(name)], "NodeNames": ["n1", "n2"]}
    read = msgspec.json.decode(
        filter_nodes(world.view, Bodies().read(msgspec.json.encode(body)), world.framework())
    )
    reasons = (read.get("FailedNodes") or {}) | (read.get("FailedAndUnresolvableNodes") or {})
    return read["NodeNames"] or [], next(iter(reasons.values()), "")


def is_kept(world: World) -> bool:
    return world.ledger.totals().reserved > 0


async def turn(world: World, seconds: float) -> None:
    await world.clock.turn(seconds)
    for uid, key in world.reservations.due(world.clock.monotonic()):
        await world.binder.settle(uid, key)


async def reserved_and_never_bound(world: World, name: str, namespace: str = "default") -> None:
    """A gang of two, one of which kube-scheduler never offers: its own rules refuse it everywhere."""
    for part in "ab":
        world.create(f"{name}{part}", 8, labels=gang(name, 2), namespace=namespace)
    assert ask(world, f"{name}a")[0]
    for _ in range(int(UNASKED_S / 5)):
        assert ask(world, f"{name}a")[0]
        await turn(world, 5)
    ask(world, f"{name}a")
    await turn(world, RESERVED_S)
    assert not is_kept(world)


async def test_room_for_pods_that_are_never_offered_is_reserved_for_seconds_and_not_again(two: World) -> None:
    await reserved_and_never_bound(two, "g")
    for _ in range(int(MOST_REST_S / 10)):
        assert not ask(two, "ga")[0]
        assert not is_kept(two)
        await turn(two, 10)
    assert (
        "this one gets a reservation only once kube-scheduler has tried all 2 pods that it needs (1 so far)"
        in (ask(two, "ga")[1])
    )


async def test_another_gang_of_the_namespace_does_not_circumvent_that(two: World) -> None:
    await reserved_and_never_bound(two, "g")
    for part in "ab":
        two.create(f"h{part}", 8, labels=gang("h", 2))
    assert ask(two, "ha") == (
        [],
        "gang default/h: earlier gangs of namespace default let their reservations expire, so this one is backing off",
    )
    woken: list[str] = []
    two.gangs.retry_wanted.subscribe(woken.extend)
    await turn(two, REST_S)
    two.gangs.wake()
    assert {"uid-ha", "uid-hb"} <= set(woken)
    assert not ask(two, "ha")[0]
    assert not is_kept(two)
    # A gang that is offered completely finds its room immediately, and the others are offered again.
    woken.clear()
    assert ask(two, "hb")[0]
    assert woken == ["uid-ha"]
    assert ask(two, "ha")[0]


async def test_other_namespaces_are_not_affected(two: World) -> None:
    await reserved_and_never_bound(two, "g", namespace="tenant")
    for part in "ab":
        two.create(f"h{part}", 8, labels=gang("h", 2))
    assert ask(two, "ha")[0]


async def test_recreated_pods_do_not_circumvent_that(two: World) -> None:
    for part in "ab":
        two.create(part, 8, labels=gang("g", 2))
    assert ask(two, "a")[0]
    await turn(two, 10)
    two.view.remove_pod(two.view.waiting["uid-a"])
    two.create("a", 8, labels=gang("g", 2))
    assert not ask(two, "a")[0]
    assert not is_kept(two)


async def test_a_gang_whose_pods_were_all_offered_rests_longer_each_time(two: World) -> None:
    for part in "ab":
        two.create(part, 8, labels=gang("g", 2))
    rests = []
    for _ in range(5):
        reserved_s, rested_s = 0, 0
        while not ask(two, "a")[0]:
            await turn(two, 5)
            rested_s += 5
        assert ask(two, "b")[0]
        while is_kept(two):
            ask(two, "a")
            await turn(two, 5)
            reserved_s += 5
        assert KEPT_S <= reserved_s <= KEPT_S + RESERVED_S
        rests.append(rested_s)
    first, *others = rests
    assert first == 0
    assert all(longer >= 1.5 * rest > 0 for rest, longer in itertools.pairwise(others))


def test_rests_are_limited_and_so_is_memory() -> None:
    rests = Rests()
    assert (rests.until_s("n"), rests.requires_every_request("n")) == (0.0, False)
    until = [rests.record_failure("n", 0.0) for _ in range(2000)]
    assert until[:3] == [REST_S, 2 * REST_S, 4 * REST_S]
    assert max(until) == MOST_REST_S
    assert (rests.until_s("other"), rests.requires_every_request("other")) == (0.0, False)
    rests.forget(2 * MOST_REST_S)
    assert rests.requires_every_request("n")
    rests.forget(2 * MOST_REST_S + 1)
    assert not rests.requires_every_request("n")
