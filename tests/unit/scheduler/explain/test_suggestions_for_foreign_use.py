"""Reasons for a pod that is blocked by memory used without an allocation."""

import msgspec
import pytest

from gpushare.api.node.device import NodeDevices
from tests.unit.scheduler.explain.test_decisions import GIB, ask, give, suggestion
from tests.unit.scheduler.server.test_app import Browser
from tests.unit.scheduler.world import World, gpu_node

pytestmark = pytest.mark.usefixtures("without_nodes")

USE = "9024 MiB of GPU 0 are used without an allocation by process 4711 (in no pod)"


def used(
    name: str, *gpus_gib: int, foreign_mib: int = 9024, by: str = "process 4711 (in no pod)"
) -> NodeDevices:
    node = gpu_node(name, *(gib * GIB for gib in gpus_gib))
    first = msgspec.structs.replace(node.devices[0], foreign_mib=foreign_mib, foreign_by=by)
    return msgspec.structs.replace(node, devices=(first, *node.devices[1:]))


async def test_reason_and_suggestion_name_the_memory_and_what_uses_it(browser: Browser, world: World) -> None:
    world.add_node(used("n", 15))
    await ask(browser, world, "waits", "n", mem=12)

    (one,) = world.decisions.waiting()
    assert one.category == "memory"
    assert one.reason == f"no single GPU has 12 GiB free (largest free: 6 GiB on GPU 0); {USE}"
    assert one.suggestion == (
        "a GPU with 12 GiB free: the closest has 6 GiB free, GPU 0 of node n; node n would fit without this: "
        f"{USE}"
    )


async def test_it_is_suggested_if_it_fills_a_gpu(browser: Browser, world: World) -> None:
    world.add_node(used("n", 15, foreign_mib=15 * GIB, by=""))
    await ask(browser, world, "waits", "n", mem=1)

    (one,) = world.decisions.waiting()
    use = f"{15 * GIB} MiB of GPU 0 are used without an allocation"
    assert one.reason == f"no single GPU has 1 GiB free (every GPU is full); {use}"
    assert one.suggestion.endswith(f"without this: {use}")


async def test_it_is_not_suggested_if_its_end_would_not_suffice(browser: Browser, world: World) -> None:
    world.add_node(used("n", 15, foreign_mib=1024))
    await give(browser, world, "there", "n", 13)
    await ask(browser, world, "waits", "n", mem=4)

    assert "without this" not in suggestion(world)


async def test_nodes_that_lack_memory_are_one_group_whatever_uses_it(browser: Browser, world: World) -> None:
    world.add_node(used("a", 15))
    world.add_node(used("b", 15, by="process 1 (in no pod), pod default/x (above its share)"))
    await ask(browser, world, "waits", "a", "b", mem=12)

    (one,) = world.decisions.waiting()
    assert one.reason == "none of 2 nodes fits: no single GPU has 12 GiB free"
    assert one.suggestion.endswith(USE)
