"""Suggestions for a pod if pods of the other kind occupy the nodes that offer its resources."""

import pytest

from gpushare.api.node.modes import NodeMode
from tests.unit.scheduler.explain.test_decisions import GIB, ask, give, suggestion
from tests.unit.scheduler.server.test_app import Browser
from tests.unit.scheduler.world import World, gpu_node

KINDS = "a node without pods of the other kind: memory-only pods and pods with compute never share a node"
LABEL = "`kubectl label node idle ack.node.gpu.schedule=core_mem --overwrite`"


@pytest.fixture
def browser(world: World) -> Browser:
    for node in world.ledger.node_names():
        world.view.remove_node(node)
    world.add_node(gpu_node("both", 16 * GIB, 16 * GIB, mode=NodeMode.CORE_MEM))
    return Browser(world)


async def test_the_pods_of_the_other_kind_are_named_and_the_command_for_a_node_without_any(
    browser: Browser, world: World
) -> None:
    world.add_node(gpu_node("busy", 16 * GIB))
    world.add_node(gpu_node("idle", 16 * GIB, mode=NodeMode.CGPU))
    await give(browser, world, "memonly", "both", 2)
    await give(browser, world, "there", "busy", 2)
    await ask(browser, world, "waits", "both", "busy", "idle", mem=4, core=30)

    assert suggestion(world) == f"{KINDS}: node both would fit once pod default/memonly has ended; or {LABEL}"


async def test_for_memory_alone_the_suggestion_is_the_other_way_round(browser: Browser, world: World) -> None:
    await give(browser, world, "a", "both", 2, core=20)
    await give(browser, world, "b", "both", 2, core=20)
    await ask(browser, world, "waits", "both", mem=4)

    assert suggestion(world) == f"{KINDS}: node both would fit once pods default/a and default/b have ended"


async def test_many_pods_and_unsuitable_nodes_are_not_named(browser: Browser, world: World) -> None:
    world.add_node(gpu_node("small", 2 * GIB))
    world.add_node(gpu_node("busy", 16 * GIB))
    for name in "abcd":
        await give(browser, world, name, "both", 2)
    await give(browser, world, "there", "busy", 2)
    await ask(browser, world, "waits", "both", "small", "busy", mem=4, core=30)

    assert suggestion(world) == KINDS


async def test_a_node_excluded_by_the_pods_own_rules_is_not_labelled(browser: Browser, world: World) -> None:
    world.add_node(gpu_node("idle", 16 * GIB))
    await give(browser, world, "memonly", "both", 2)
    await ask(browser, world, "waits", "both", mem=4, core=30)

    assert "kubectl label" not in suggestion(world)
