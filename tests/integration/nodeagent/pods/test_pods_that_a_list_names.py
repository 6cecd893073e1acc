"""A list of the node's pods is as old as its request, and the watch delivers nothing twice."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gpushare.api import names
from tests.integration.nodeagent.cluster_objects import NODE, container, pod
from tests.integration.nodeagent.conftest import World
from tests.integration.nodeagent.scripted_kubelet import AdmissionFailed

LIST = "GET /api/v1/pods"


@asynccontextmanager
async def listing(world: World) -> AsyncIterator[None]:
    """A list of the node's pods is in progress, as before an unknown pod is refused."""

    async def refused() -> None:
        with pytest.raises(AdmissionFailed):
            await world.kubelet.admit(pod("stranger", container("c", 7)))

    before = world.api.requests.count(LIST)
    world.api.lists_held = True
    refusing = asyncio.create_task(refused())
    await world.changes.until(lambda: world.api.requests.count(LIST) > before, "pods are listed")
    yield
    world.api.release_lists()
    await refusing


def known(world: World) -> set[str]:
    """The names of the pods that the agent counts."""
    return {allocated.bound.name for allocated in world.agent._book.pods}


async def test_a_pod_deleted_during_a_list_stays_deleted(world: World) -> None:
    await world.start()
    await world.run_pod("gone", 3, on=0)
    await world.until_assigned("gone")
    async with listing(world):
        world.end_pod("gone")
        await world.changes.until(lambda: not known(world), "the watch has delivered it")
    assert not known(world)
    # A node that stops sharing is described for as long as any pod holds an allocation.
    world.api.label_node(NODE, {})
    await world.changes.until(lambda: names.ANN_DEVICES not in world.api.annotations("nodes", NODE))


async def test_a_record_written_during_a_list_stays_known(world: World) -> None:
    await world.start()
    made = world.bind("a", container("c", 3), on=0)
    agent = world.agent

    def place() -> list[int]:
        return [share.index for allocated in agent._book.pods for share in allocated.allocation.gpus]

    await world.changes.until(lambda: place() == [0])
    async with listing(world):
        moved = {**made, "metadata": {**made["metadata"], "annotations": {}}}
        world.decide(moved, on=1)
        world.api.put_pod(moved)
        await world.changes.until(lambda: place() == [1], "the watch has delivered it")
    assert place() == [1]


async def test_a_pod_that_the_watch_never_shows_is_read_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was created and deleted while the watch was cut, and listed in between."""
    monkeypatch.setattr("gpushare.nodeagent.allocate.allocator.SHOWN_S", 0.05)
    await world.start()
    await world.run_pod("stays", 3, on=0)
    world.api.watch_held = True
    await world.run_pod("short", 3, on=1)
    assert known(world) == {"stays", "short"}
    world.end_pod("short")
    world.api.forget()
    world.api.release_watch()
    await world.changes.until(lambda: known(world) == {"stays"})
    await world.run_pod("next", 15, on=1)


async def test_a_pod_recreated_under_its_name_before_the_watch_shows_it_gets_its_own_allocation(
    world: World,
) -> None:
    """As those of a StatefulSet are. The kubelet lists the new one, without devices, where the agent knows
    the one before.
    """
    await world.start()
    first = await world.run_pod("s-0", 3, on=0)
    await world.until_assigned("s-0")
    world.api.watch_held = True
    world.end_pod("s-0")
    second = await world.run_pod("s-0", 3, on=1)
    assert [one.envs["c"][names.ENV_MEM_INDEX] for one in (first, second)] == ["0", "1"]
    await world.until_assigned("s-0")
    world.api.release_watch()
    await world.run_pod("next", 15, on=0)
    assert known(world) == {"s-0", "next"}
