"""The world that these tests share."""

import pytest

from tests.unit.scheduler.world import World, gpu_node


@pytest.fixture
async def world() -> World:
    made = World()
    made.add_node(gpu_node("n1", 16384))
    return made
