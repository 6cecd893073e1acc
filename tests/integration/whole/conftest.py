"""One cluster a test file: started once, emptied and looked over after each test."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.integration.whole.world import World, world


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """The cluster of the file's ``NODES``."""
    async with world(*request.module.NODES) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def seen(shared_world: World) -> AsyncIterator[World]:
    """The file's cluster; empty and without a traceback in any log when the test has ended."""
    yield shared_world
    await shared_world.delete_all()
    shared_world.assert_sound()
