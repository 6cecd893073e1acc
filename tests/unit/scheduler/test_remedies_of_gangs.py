"""What is advised to a pod of a gang."""

import pytest

from tests.unit.scheduler.test_app import Browser
from tests.unit.scheduler.test_decisions import GIB, ask_again
from tests.unit.scheduler.test_gangs import gang
from tests.unit.scheduler.world import World, gpu_node


@pytest.mark.parametrize(("running", "lacking"), [(0, "3 pods"), (1, "2 pods"), (2, "1 pod")])
async def test_room_is_wanted_for_those_of_a_gang_alone_that_do_not_run(
    world: World, running: int, lacking: str
) -> None:
    browser = Browser(world)
    world.add_node(gpu_node("n1", 2 * GIB))
    for number in range(3):
        world.create(f"p{number}", 4, labels=gang("g", 3), node="n2" if number < running else "")
    await ask_again(browser, world, "p2", "n1")

    remedy = next(one.remedy for one in world.decisions.waiting() if one.key == "default/p2")
    assert remedy.startswith(f"room for {lacking} of gang default/g at once, or a smaller ")
