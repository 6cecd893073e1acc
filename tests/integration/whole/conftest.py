"""One cluster a test file: started once, emptied and looked over after each test."""

import json
from collections.abc import AsyncIterator, Generator
from typing import Final

import pytest
import pytest_asyncio

from tests.integration.whole.world import World, world

#: Lines of each part's log that are shown with a failed test.
_SHOWN_LINES: Final = 80


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With a failure comes what the cluster was like: its pods as the watch shows them, and the ends of all logs."""
    report = yield
    made = getattr(item, "funcargs", {}).get("seen")
    if report.failed and isinstance(made, World):
        pods = [json.dumps(pod) for pod in made.pods.items.values()]
        report.sections.append(("pods of the cluster", "\n".join(pods)))
        for part, log in made.logs().items():
            report.sections.append((f"log of {part}", "\n".join(log.splitlines()[-_SHOWN_LINES:])))
    return report


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
