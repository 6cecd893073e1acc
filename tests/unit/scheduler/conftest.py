"""The world that these tests share."""

from typing import TYPE_CHECKING

import pytest

from tests.unit.scheduler.defragmentation.moving import Moving
from tests.unit.scheduler.world import World, gpu_node

if TYPE_CHECKING:
    from tests.unit.scheduler.server.test_app import Browser


@pytest.fixture
async def world() -> World:
    made = World()
    made.add_node(gpu_node("n1", 16384))
    return made


@pytest.fixture
async def moving() -> Moving:
    """Two GPUs with 6 units free each, and a third elsewhere."""
    made = Moving()
    made.node("n", 16, 16)
    await made.bound("a", 10, "n")
    await made.bound("b", 10, "n")
    return made


@pytest.fixture
def without_nodes(world: World) -> None:
    """The world has none."""
    for node in world.ledger.node_names():
        world.view.remove_node(node)


@pytest.fixture
def browser(world: World) -> "Browser":
    """Sends HTTP requests to this world."""
    from tests.unit.scheduler.server.test_app import (
        Browser,  # its assertions are rewritten once tests are collected
    )

    return Browser(world)
