"""Which pods would have to end to let a pod in on the nearest GPU."""

import msgspec
import pytest

from gpushare.api.node.modes import NodeMode
from gpushare.api.quantity import MemoryUnit
from tests.unit.scheduler.explain.test_decisions import GIB, ask, give, suggestion
from tests.unit.scheduler.server.test_app import Browser
from tests.unit.scheduler.world import World, gpu_node

pytestmark = pytest.mark.usefixtures("without_nodes")


async def full(browser: Browser, world: World, *units: int) -> None:
    world.add_node(gpu_node("n", 16 * GIB))
    for number, mem in enumerate(units):
        await give(browser, world, f"p{number}", "n", mem)


@pytest.mark.parametrize(
    ("there", "mem", "named"),
    [
        ((6, 1, 8), 5, "pod default/p0 (6 GiB)"),
        ((8, 6), 9, "pod default/p0 (8 GiB)"),
        ((5, 5, 5), 11, "pods default/p1 (5 GiB) and default/p2 (5 GiB)"),
        ((5, 5, 5), 16, "pods default/p0 (5 GiB), default/p1 (5 GiB) and default/p2 (5 GiB)"),
    ],
)
async def test_the_fewest_pods_are_named_preferably_the_smallest(
    browser: Browser, world: World, there: tuple[int, ...], mem: int, named: str
) -> None:
    await full(browser, world, *there)
    await ask(browser, world, "waits", "n", mem=mem)

    assert suggestion(world).endswith(f"free, GPU 0 of node n; deleting {named} would be enough")


async def test_pods_that_are_terminating_need_no_deletion(browser: Browser, world: World) -> None:
    await full(browser, world, 12)
    world.api.pods[world.api.key("p0")]["metadata"]["deletionTimestamp"] = "2026-11-22T10:00:00Z"
    world.see("p0")
    await ask(browser, world, "waits", "n", mem=8)

    assert suggestion(world).endswith("; the end of pod default/p0 (12 GiB), already terminating, is enough")


async def test_more_than_three_are_not_named(browser: Browser, world: World) -> None:
    await full(browser, world, 3, 3, 3, 3)
    await ask(browser, world, "waits", "n", mem=16)

    assert suggestion(world) == "a GPU with 16 GiB free: the closest has 4 GiB free, GPU 0 of node n"


async def test_pods_to_end_are_named_with_their_compute(browser: Browser, world: World) -> None:
    world.add_node(gpu_node("n", 16 * GIB, mode=NodeMode.CORE_MEM))
    await give(browser, world, "little", "n", 6, core=10)
    await give(browser, world, "much", "n", 2, core=70)
    await ask(browser, world, "waits", "n", mem=2, core=40)

    assert suggestion(world).endswith("; deleting pod default/much (2 GiB and 70%) would be enough")


async def test_needed_and_free_memory_are_in_the_same_unit(browser: Browser, world: World) -> None:
    node = gpu_node("n", 1024)
    world.add_node(msgspec.structs.replace(node, unit=MemoryUnit.parse("128MiB")))
    await give(browser, world, "there", "n", 3)
    await ask(browser, world, "waits", "n", mem=7)

    assert suggestion(world) == (
        "a GPU with 896 MiB free: the closest has 640 MiB free, GPU 0 of node n; "
        "deleting pod default/there (384 MiB) would be enough"
    )
