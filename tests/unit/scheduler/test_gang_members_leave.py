"""Members that are being deleted are no part of a gang any more: what takes their place comes together, too."""

import asyncio

import pytest

from tests.unit.scheduler.test_gangs import args, ask, gang, used
from tests.unit.scheduler.world import World, gpu_node


@pytest.fixture
def two(world: World) -> World:
    """Two nodes with one GPU of 16 GiB each."""
    world.add_node(gpu_node("n2", 16384))
    return world


def leaves(world: World, name: str) -> None:
    world.api.pods[f"default/{name}"]["metadata"]["deletionTimestamp"] = "2026-11-22T10:00:00Z"
    world.see(name)


async def runs(world: World, *names: str) -> None:
    """A gang of 8 GiB a pod, bound and seen so."""
    for name in names:
        world.create(name, 8, labels=gang("g", len(names)))
    nodes = {name: ask(world, name)[0][0] for name in names}
    await asyncio.gather(*(world.binder.bind(args(name, node)) for name, node in nodes.items()))
    for name in names:
        world.see(name)


async def test_pods_that_replace_those_that_are_being_deleted_come_together_too(two: World) -> None:
    await runs(two, "a", "b")
    leaves(two, "a")
    leaves(two, "b")
    two.create("c", 16, labels=gang("g", 2))
    assert ask(two, "c") == ([], {"gang default/g needs 2 pods together: there is 1"})
    two.create("d", 16, labels=gang("g", 2))
    assert not ask(two, "c")[0], "there is room for one of them, and for one alone it is not enough"
    assert used(two) == 2 * 8192


async def test_one_pod_that_replaces_one_that_is_being_deleted_needs_no_others(two: World) -> None:
    await runs(two, "a", "b")
    leaves(two, "a")
    two.create("c", 8, labels=gang("g", 2))
    assert ask(two, "c")[0]
