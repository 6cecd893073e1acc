"""What the agent's metrics contain about its watches: each by its kind, at the time of a scrape."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpushare.kube.client.errors import ApiError
from gpushare.nodeagent.node.watches import Watches
from gpushare.nodeagent.observability.metrics import Metrics
from tests.unit.kube.scripted import PATH, ScriptedClock, ScriptedServer, until


class Session:
    """Two collections of one server."""

    def __init__(self) -> None:
        self.nodes, self.pods = ScriptedServer(), ScriptedServer()

    def _of(self, path: str) -> ScriptedServer:
        return {"/api/v1/nodes": self.nodes, "/api/v1/pods": self.pods}[path]

    async def request(self, method: str, path: str, *, params: Mapping[str, str], timeout_s: float) -> bytes:
        return await self._of(path).request(method, PATH, params=params, timeout_s=timeout_s)

    async def stream(
        self, path: str, params: Mapping[str, str], *, idle_timeout_s: float
    ) -> AsyncGenerator[bytes, None]:
        async for line in self._of(path).stream(PATH, params, idle_timeout_s=idle_timeout_s):
            yield line


class LookedAt(ScriptedClock):
    """Calls ``look`` whenever a caller begins to sleep."""

    def __init__(self) -> None:
        super().__init__()
        self.look: Callable[[], object] = lambda: None

    async def sleep(self, seconds: float) -> None:
        self.look()
        await super().sleep(seconds)


class Quiet:
    def synced(self) -> None: ...

    def upsert(self, item: object) -> None: ...

    def remove(self, key: str, last: object) -> None: ...


class Bed:
    """The watches of node ``n1`` by a scripted server, and what is scraped of them."""

    def __init__(self) -> None:
        self.session, self.clock, self.metrics = Session(), LookedAt(), Metrics()
        server: Any = self.session
        self.watches = Watches("n1", server, Quiet(), Quiet(), self.metrics, clock=self.clock)

    def scraped(self) -> dict[str, dict[str, float]]:
        """Metric → kind → value."""
        found: dict[str, dict[str, float]] = {}
        self.watches.count()
        for family in text_string_to_metric_families(self.metrics.exposition().decode()):
            for sample in family.samples:
                if "kind" in sample.labels:
                    name = sample.name.removeprefix("gpushare_nodeagent_")
                    found.setdefault(name, {})[sample.labels["kind"]] = sample.value
        return found

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(one) for one in self.watches.running()]
            await self.watches.synced()
            await until(lambda: self.session.nodes.idle.is_set() and self.session.pods.idle.is_set())
            yield
            for task in running:
                task.cancel()


@pytest.fixture
def bed() -> Bed:
    return Bed()


def test_before_the_first_answer_of_the_api_server_no_watch_counts_as_alive(bed: Bed) -> None:
    assert bed.scraped() == {
        "watch_last_event_age_seconds": {"nodes": float("inf"), "pods": float("inf")},
        "watch_failing": {"nodes": 1.0, "pods": 1.0},
        "watched_objects": {"nodes": 0.0, "pods": 0.0},
        "watch_relists_total": {"nodes": 0.0, "pods": 0.0},
    }
    assert len(bed.watches.missing()) == 2


async def test_the_age_of_a_watch_grows_until_it_receives_again(bed: Bed) -> None:
    bed.session.nodes.create("n1")
    async with bed.following():
        bed.clock.now_s += 30.0
        bed.session.nodes.modify("n1", 1)
        await until(bed.session.nodes.idle.is_set)
        found = bed.scraped()
        assert found["watch_last_event_age_seconds"] == {"nodes": 0.0, "pods": 30.0}
        assert found["watched_objects"] == {"nodes": 1.0, "pods": 0.0}
        assert found["watch_failing"] == {"nodes": 0.0, "pods": 0.0}
        assert bed.watches.missing() == []


async def test_a_watch_that_cannot_be_followed_is_trouble_until_it_was_read_again(bed: Bed) -> None:
    async with bed.following():
        seen: list[dict[str, float]] = []
        bed.clock.look = lambda: seen.append(bed.scraped()["watch_failing"])
        bed.session.pods.list_faults.append(ApiError(403, "Forbidden", "pods is forbidden", PATH))
        bed.session.pods.fault("gone")
        await until(lambda: bed.scraped()["watch_relists_total"]["pods"] == 1.0)
        assert {"nodes": 0.0, "pods": 1.0} in seen
        assert bed.scraped()["watch_failing"] == {"nodes": 0.0, "pods": 0.0}
        assert bed.scraped()["watch_relists_total"] == {"nodes": 0.0, "pods": 1.0}
