"""One cluster for all tests with the same nodes: emptied and checked after each."""

import contextlib
import json
from collections.abc import AsyncIterator, Generator, Iterable, Iterator
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from gpushare.api import names
from gpushare.api.node.modes import MODES
from gpushare_playground.cluster import NodeDescription
from tests.integration.whole.cluster import Json
from tests.integration.whole.forked import FORKS
from tests.integration.whole.world import World, world

#: Lines of each part's log that are shown with a failed test.
_SHOWN_LINES: Final = 80
_IS_LAST: Final = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the cluster's state to a failure: its pods as the watch shows them, and the ends of all logs."""
    report = yield
    made = getattr(item, "funcargs", {}).get("cluster")
    if report.failed and isinstance(made, World):
        # Whatever state it is in: the next test starts with another.
        made.failed = True
        pods = [json.dumps(pod) for pod in made.pods.items.values()]
        report.sections.append(("pods of the cluster", "\n".join(pods)))
        for part, log in made.logs().items():
            report.sections.append((f"log of {part}", "\n".join(log.splitlines()[-_SHOWN_LINES:])))
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of the same nodes run one after the other."""
    places = [
        at for at, item in enumerate(items)
        if isinstance(item, pytest.Function)
        and item.path.parent == Path(__file__).parent
        and "cluster" in item.fixturenames
        and hasattr(item.module, "NODES")
    ]  # fmt: skip
    nodes = {at: repr(items[at].module.NODES) for at in places}  # type: ignore[attr-defined]
    first = {one: at for at, one in reversed(nodes.items())}
    found = [items[at] for at in sorted(places, key=lambda at: (first[nodes[at]], at))]
    for at, item in zip(places, found, strict=True):
        items[at] = item


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Before its fixtures end: whether the next test of this process, if any, uses another cluster."""
    item.stash[_IS_LAST] = nextitem is None or nextitem.path.parent != Path(__file__).parent


def offered(nodes: Iterable[Json]) -> dict[str, list[str]]:
    """Each node's allocatable memory, compute and whole GPUs."""
    resources = (names.GPU_MEM, names.GPU_CORE, names.GPU_WHOLE)
    return {
        node["metadata"]["name"]: [node["status"].get("allocatable", {}).get(what, "0") for what in resources]
        for node in nodes
    }


class Shared:
    """The cluster of the test that ran last, for as long as tests use the same nodes and leave it sound."""

    def __init__(self) -> None:
        self._stack = contextlib.AsyncExitStack()
        self._nodes: tuple[NodeDescription, ...] = ()
        self._offered: dict[str, list[str]] = {}
        self._world: World | None = None

    async def of(self, nodes: tuple[NodeDescription, ...], *, isolated: bool) -> World:
        """The cluster of these nodes; files with equal nodes have equal isolation."""
        if self._world is None or self._world.failed or self._nodes != nodes:
            await self.end()
            self._world, self._nodes = (
                await self._stack.enter_async_context(world(*nodes, isolated=isolated)),
                nodes,
            )
            self._offered = await self._world.nodes.until(self._all_offered, f"nodes offer what {nodes} say")
        return self._world

    def _all_offered(self) -> dict[str, list[str]]:
        """What nodes offer, once each offers everything of its mode; nothing before."""
        assert self._world is not None
        found = offered(self._world.nodes.items.values())
        for node in self._nodes:
            mode = MODES[dict(node.labels)[names.LABEL_MODE]]
            wanted = (mode.shares_memory, mode.gives_core, mode.gives_whole)
            if [amount != "0" for amount in found.get(node.name, ())] != list(wanted):
                return {}
        return found

    async def restored(self) -> None:
        """Wait until nodes offer what they did when the cluster was new; tests restore labels themselves."""
        made = self._world
        if made is not None:
            await made.nodes.until(
                lambda: offered(made.nodes.items.values()) == self._offered,
                f"nodes offer again {self._offered}",
                detail=lambda: offered(made.nodes.items.values()),
            )

    async def end(self) -> None:
        """Stop it, if there is one."""
        self._world = None
        await self._stack.aclose()


@pytest.fixture(scope="session", autouse=True)
def forks() -> Iterator[None]:
    yield
    FORKS.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared() -> AsyncIterator[Shared]:
    made = Shared()
    yield made
    await made.end()


@pytest_asyncio.fixture(loop_scope="session")
async def cluster(request: pytest.FixtureRequest, shared: Shared) -> AsyncIterator[World]:
    """The cluster of the file's ``NODES``, which are ``ISOLATED`` or not; after the test it is emptied and
    checked.
    """
    made = await shared.of(request.module.NODES, isolated=getattr(request.module, "ISOLATED", False))
    yield made
    await made.delete_all()
    made.assert_sound()
    if request.node.stash[_IS_LAST]:
        await shared.end()  # an unused cluster takes a tenth of a processor from other tests
    else:
        await shared.restored()
