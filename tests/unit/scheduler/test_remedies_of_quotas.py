"""What is advised to a pod that an elastic quota refuses, or would."""

import pytest

from tests.unit.scheduler.test_app import Browser
from tests.unit.scheduler.test_decisions import GIB, ask, give
from tests.unit.scheduler.test_quotas import MEM, tree
from tests.unit.scheduler.world import World, gpu_node


@pytest.fixture
def browser(world: World) -> Browser:
    return Browser(world)


def limit(world: World, *, root: int, leaf: int, generation: int = 1) -> None:
    below = {"name": "leaf", "namespaces": ["default"], "max": {MEM: leaf}}
    top = {"name": "root", "min": {MEM: root}, "max": {MEM: root}, "children": [below]}
    world.view.quotas.upsert(tree(top, generation=generation))


def remedy(world: World) -> str:
    return next(one.remedy for one in world.decisions.waiting() if one.key == "default/waits")


@pytest.mark.parametrize(
    ("root", "leaf", "told"),
    [
        (30, 4, "pods of elastic quota root/leaf that end, or a larger max of it"),
        (4, 4, "pods of elastic quotas root/leaf and root that end, or a larger max of each"),
        (30, 2, "ask for less, or a larger max of elastic quota root/leaf: it asks for more than that alone"),
    ],
)
async def test_every_quota_that_is_passed_is_named(
    browser: Browser, world: World, root: int, leaf: int, told: str
) -> None:
    world.add_node(gpu_node("n1", 8 * GIB))
    await give(browser, world, "there", "n1", 2)
    limit(world, root=root, leaf=leaf)
    await ask(browser, world, "waits", "n1", mem=3)

    assert remedy(world) == told


async def test_where_there_is_no_room_besides_that_is_said(browser: Browser, world: World) -> None:
    world.add_node(gpu_node("n1", 8 * GIB))
    await give(browser, world, "there", "n1", 6)
    limit(world, root=30, leaf=8)
    await ask(browser, world, "waits", "n1", mem=4)

    assert remedy(world) == (
        "pods of elastic quota root/leaf that end, or a larger max of it; and room, which none of these nodes has now"
    )


async def test_no_room_is_promised_to_whom_its_quota_refuses_by_now(browser: Browser, world: World) -> None:
    world.add_node(gpu_node("n1", 6 * GIB))
    await give(browser, world, "there", "n1", 5)
    await ask(browser, world, "waits", "n1", mem=4)
    world.add_node(gpu_node("n1", 16 * GIB))
    assert remedy(world) == "there is room by now, on node n1: kube-scheduler asks again by itself"

    limit(world, root=30, leaf=8)

    assert remedy(world) == "pods of elastic quota root/leaf that end, or a larger max of it"


async def test_once_its_quota_lets_it_in_what_is_short_now_is_told(browser: Browser, world: World) -> None:
    world.add_node(gpu_node("n1", 8 * GIB))
    await give(browser, world, "there", "n1", 2)
    limit(world, root=30, leaf=4)
    await ask(browser, world, "waits", "n1", mem=4)

    limit(world, root=30, leaf=30, generation=2)

    assert remedy(world) == "there is room by now, on node n1: kube-scheduler asks again by itself"
