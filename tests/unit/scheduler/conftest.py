"""The world that these tests share."""

import pytest

from tests.unit.scheduler.moving import Moving
from tests.unit.scheduler.world import World, gpu_node


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
