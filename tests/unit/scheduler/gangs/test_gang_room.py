"""Reservations of gangs are named in the reasons of the pods that they keep pending, and in the decisions API."""

import asyncio
from typing import Any

import pytest

from gpushare.api.node.modes import NodeMode
from gpushare.ledger.preemption.victims import Plan
from gpushare.scheduler.plugins.gangs import reservations
from gpushare.scheduler.plugins.gangs.reservations import KEPT_S, UNASKED_S
from tests.unit.scheduler.explain.test_decisions import GIB, ask_again, bind, get, give, suggestion
from tests.unit.scheduler.gangs.test_gangs import ask as asked
from tests.unit.scheduler.gangs.test_gangs import gang
from tests.unit.scheduler.server.test_app import Browser
from tests.unit.scheduler.world import World, gpu_node

FULL = "no single GPU has 10 GiB free (largest free: 1 GiB on GPU 0)"
RESERVED = f"{FULL}; the capacity there is reserved for gang tenant/g"


@pytest.fixture
def browser(world: World) -> Browser:
    """Of a world whose node n1 has one GPU of 16 GiB, n2 one of 16 GiB and n3 one of 4 GiB."""
    world.add_node(gpu_node("n2", 16 * GIB))
    world.add_node(gpu_node("n3", 4 * GIB))
    return Browser(world)


def make(world: World, name: str, mem: int = 15, *, namespace: str = "tenant", **settings: Any) -> None:
    """Two pods of a gang, of which kube-scheduler offers the first."""
    for part in "ab":
        world.create(f"{name}{part}", mem, labels=gang(name, 2), namespace=namespace, **settings)


async def keep(browser: Browser, world: World, name: str = "g", mem: int = 15, **settings: Any) -> None:
    make(world, name, mem, **settings)
    body = {"Pod": world.api.pods[world.api.key(f"{name}a")], "NodeNames": ["n1", "n2"]}
    assert len((await browser.post("filter", body))["NodeNames"]) == 1


async def test_a_pod_refused_because_of_a_reservation_is_shown_the_gang(
    browser: Browser, world: World
) -> None:
    await keep(browser, world)
    world.create("waits", 10)

    assert asked(world, "waits") == ([], {RESERVED})
    await ask_again(browser, world, "waits", "n1", "n2")
    assert suggestion(world).endswith("; node n1 has enough capacity, but it is reserved for gang tenant/g")
    assert (await get(browser, "/default/waits"))["answer"]["groups"][0]["examples"][0]["reason"] == RESERVED

    world.gangs.give_up_all()
    assert asked(world, "waits")[0] == ["n1", "n2"]


async def test_no_gang_is_named_if_its_room_would_not_suffice(browser: Browser, world: World) -> None:
    await give(browser, world, "there", "n1", 8)
    await keep(browser, world, mem=8)
    world.create("waits", 10)

    # Of n1 the gang reserves 8 GiB next to a pod of the same size; of n2 everything available.
    assert asked(world, "waits", "n1") == ([], {"no single GPU has 10 GiB free (every GPU is full)"})
    assert asked(world, "waits", "n3") == ([], {"requests 10 GiB, but the largest GPU has 4 GiB"})


async def test_room_of_pods_being_bound_is_not_called_reserved(browser: Browser, world: World) -> None:
    await keep(browser, world, namespace="default")
    world.create("waits", 10)
    world.api.gate = asyncio.Event()
    nodes = {name: world.gangs.planned_node(f"uid-{name}") for name in ("ga", "gb")}
    bound = [asyncio.create_task(bind(browser, name, node)) for name, node in nodes.items()]
    while (await get(browser, "/kept"))["kept"]:
        await asyncio.sleep(0)

    assert asked(world, "waits") == ([], {FULL})
    world.api.gate.set()
    assert await asyncio.gather(*bound) == ["", ""]


async def ask_again_of(browser: Browser, world: World, name: str) -> None:
    body = {"Pod": world.api.pods[world.api.key(name)], "NodeNames": ["n1", "n2"]}
    assert (await browser.post("filter", body))["NodeNames"]


async def test_reserved_compute_belongs_to_that_gang_too(world: World) -> None:
    browser = Browser(world)
    for name in ("n1", "n2"):
        world.add_node(gpu_node(name, 16 * GIB, mode=NodeMode.CORE_MEM))
    await keep(browser, world, mem=2, core=80)
    world.create("waits", 2, core=50)

    assert asked(world, "waits", "n1") == (
        [],
        {
            "no single GPU has 2 GiB and 50% compute free (closest: GPU 0 with 14 GiB and 20%); "
            "the capacity there is reserved for gang tenant/g"
        },
    )


async def test_gangs_that_reserve_a_node_together_are_all_named(browser: Browser, world: World) -> None:
    for name in ("e", "d", "c", "b"):
        await keep(browser, world, name, mem=2, namespace=f"of-{name}")
    world.create("waits", 15)
    reasons = sorted(asked(world, "waits")[1], key=len)
    assert reasons[-1].endswith("the capacity there is reserved for gangs of-b/b, of-c/c, of-d/d and 1 more")


async def test_a_pending_gang_is_shown_the_gang_before_it(browser: Browser, world: World) -> None:
    await keep(browser, world)
    make(world, "h", 10, namespace="default")

    (reason,) = asked(world, "ha")[1]
    assert (
        reason == f"gang default/h needs capacity for 2 pods at once, and there is capacity for 0: {RESERVED}"
    )
    await ask_again(browser, world, "ha", "n1", "n2")
    assert suggestion(world, "ha").endswith(
        "; node n1 has enough capacity, but it is reserved for gang tenant/g"
    )
    world.create("small", 1)
    assert len(asked(world, "small")[0]) == 2


async def test_of_very_many_nodes_some_are_examined(
    browser: Browser, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reservations, "_MOST_NODES", 1)
    await keep(browser, world)
    world.create("waits", 10)
    assert asked(world, "waits") == ([], {FULL, RESERVED})


async def test_a_reservation_is_listed_with_members_and_deadline(browser: Browser, world: World) -> None:
    assert (await get(browser, "/kept"))["kept"] == []
    await keep(browser, world, mem=8)
    (reserved,) = (await get(browser, "/kept"))["kept"]
    now_s = world.clock.now_s

    node = world.gangs.planned_node("uid-ga")
    share = {"node": node, "gpu": 0, "uuid": f"GPU-{node}-0", "units": 16, "MiB": 16384, "corePercent": 0}
    assert reserved == {
        "gang": "tenant/g",
        "come": 0,
        "least": 2,
        "until": now_s + UNASKED_S + world.reservations.ttl_s,
        "shares": [share],
    }
    await ask_again_of(browser, world, "gb")
    (reserved,) = (await get(browser, "/kept"))["kept"]
    assert reserved["until"] == now_s + KEPT_S + world.reservations.ttl_s
    assert (await get(browser, "/kept"))["scheduler"]["leads"] is None


async def test_a_pod_that_waited_at_bind_counts_as_arrived(browser: Browser, world: World) -> None:
    world.gangs._patience_s = 0.01
    await keep(browser, world, namespace="default")
    error = await bind(browser, "ga", world.gangs.planned_node("uid-ga"))

    assert error.endswith("1 of 2 pods is ready to be bound, and capacity is reserved for the others")
    assert [one["come"] for one in (await get(browser, "/kept"))["kept"]] == [1]


async def test_gangs_without_reservations_are_forgotten(browser: Browser, world: World) -> None:
    """However many come and go: only reservations are stored."""
    for number in range(200):
        await keep(browser, world, name=f"g{number}")
        world.gangs.give_up_all()
    world.create("waits", 10)
    assert asked(world, "waits")[0] == ["n1", "n2"]
    room = world.gangs.room
    assert list(room.kept()) == []
    assert sum(map(len, room._on_node.values())) < 10


async def test_the_list_of_pending_pods_shows_reservations_of_gangs_and_single_pods(
    browser: Browser, world: World
) -> None:
    assert (await get(browser, ""))["kept"] == []
    await keep(browser, world)
    world.create("waits", 3)
    record = world.view.waiting["uid-waits"]
    world.ledger.nominations.add("uid-waits", record.request, Plan("n3", (0,), (), ()))
    reserved = (await get(browser, ""))["kept"]
    assert {
        one["whom"]: [(share["node"], share["gpu"], share["MiB"]) for share in one["shares"]]
        for one in reserved
    } == {
        "gang tenant/g": [("n1", 0, 15 * GIB), ("n2", 0, 15 * GIB)],
        "pod default/waits": [("n3", 0, 3 * GIB)],
    }
