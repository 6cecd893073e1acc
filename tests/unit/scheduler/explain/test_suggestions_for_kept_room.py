"""Suggestions for a pod if room is reserved for others."""

import pytest
from msgspec import structs

from gpushare.api.node.modes import NodeMode
from gpushare.ledger.preemption.victims import Rank
from gpushare.scheduler.cache.kubelet_capacity import Sums
from tests.unit.scheduler.explain.test_decisions import GIB, ask, ask_again, give, suggestion
from tests.unit.scheduler.server.test_app import Browser
from tests.unit.scheduler.world import World, gpu_node

RESERVED = "; node n1 has enough capacity, but it is reserved for pod default/first"


async def keep(
    browser: Browser, world: World, *, mem: int = 6, core: int | None = None, uid: str = ""
) -> None:
    """Room on node n1 is kept for pod ``first``, or under another ``uid``."""
    await ask(browser, world, "first", "n1", mem=mem, core=core)
    request = world.view.waiting["uid-first"].request
    assert request is not None
    plan = world.ledger.evictions.plan(request, ["n1"], lambda _: Rank(0))
    assert plan is not None
    world.ledger.nominations.add(uid or "uid-first", request, plan)


@pytest.mark.parametrize(("uid", "owner"), [("", "pod default/first"), ("moved:uid-x", "another pod")])
async def test_the_owner_of_reserved_memory_is_named(
    browser: Browser, world: World, uid: str, owner: str
) -> None:
    world.add_node(gpu_node("n1", 8 * GIB))
    await keep(browser, world, uid=uid)
    await ask(browser, world, "waits", "n1", mem=4)

    assert suggestion(world) == (
        "a GPU with 4 GiB free: the closest has 2 GiB free, GPU 0 of node n1; "
        f"node n1 has enough capacity, but it is reserved for {owner}"
    )
    world.ledger.nominations.remove(uid or "uid-first")
    await ask_again(browser, world, "waits", "n1")
    assert "keeps it" not in suggestion(world)


async def test_reservations_that_are_not_in_the_way_are_not_named(browser: Browser, world: World) -> None:
    world.add_node(gpu_node("n1", 8 * GIB))
    await give(browser, world, "there", "n1", 5)
    await keep(browser, world, mem=2)
    await ask(browser, world, "waits", "n1", mem=4)

    assert suggestion(world).endswith(
        "the closest has 1 GiB free, GPU 0 of node n1; deleting pod default/there (5 GiB) would be enough"
    )


async def test_reserved_compute_is_not_reported_as_free(browser: Browser, world: World) -> None:
    world.add_node(gpu_node("n1", 8 * GIB, mode=NodeMode.CORE_MEM))
    await keep(browser, world, core=60)
    await ask(browser, world, "waits", "n1", mem=4, core=60)

    assert suggestion(world).endswith(f"GPU 0 of node n1, which has 40% compute free{RESERVED}")


async def test_no_pod_to_end_is_named_where_all_places_are_reserved(browser: Browser, world: World) -> None:
    world.add_node(structs.replace(gpu_node("n1", 8 * GIB), max_pods=1))
    await keep(browser, world, mem=2)
    await ask(browser, world, "waits", "n1", mem=2)

    cap = "or raise the cap on node n1 (node label ack.node.gpu.max-pod)"
    assert (
        suggestion(world)
        == f"wait until the pods for which these GPUs are reserved have ended, {cap}{RESERVED}"
    )


@pytest.mark.parametrize("held", [False, True])
async def test_a_mode_helps_once_the_owners_of_reservations_have_ended_too(
    browser: Browser, world: World, held: bool
) -> None:
    world.add_node(gpu_node("n1", 8 * GIB))
    if held:
        await give(browser, world, "there", "n1", 2)
    await keep(browser, world)
    await ask(browser, world, "waits", "n1", mem=2, core=20)

    blockers = "its 1 pod with GPU memory only and 1 pod with reserved capacity there have"
    assert (
        f", which helps once {blockers if held else '1 pod with reserved capacity there has'} ended; or"
        in suggestion(world)
    )


async def test_capacity_offered_again_by_a_kubelet_does_not_help_if_it_is_reserved(
    browser: Browser, world: World
) -> None:
    world.add_node(gpu_node("n1", 8 * GIB))
    await keep(browser, world)
    world.view.offers.set_node("n1", Sums(7, 0, 0))
    await ask(browser, world, "waits", "n1", mem=4)

    assert suggestion(world).startswith(
        "GPUs that their kubelet offers again, and the capacity there that is reserved for others: node n1: the kubelet offers 1 "
    )
