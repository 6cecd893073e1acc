"""Suggestions for a pod that an elastic quota refuses, or would refuse."""

import msgspec
import pytest

from gpushare.api.names import LABEL_POD_GPU_COUNT, LABEL_POD_PLACEMENT, POD_PLACEMENT_WHOLE_DEVICE
from gpushare.api.node.modes import NodeMode
from tests.unit.scheduler.elastic_quota.test_quotas import MEM, tree
from tests.unit.scheduler.explain.test_decisions import GIB, ask, ask_again, give, suggestion
from tests.unit.scheduler.server.test_app import Browser
from tests.unit.scheduler.world import World, gpu_node, pod_object


def limit(world: World, *, root: int, leaf: int, generation: int = 1) -> None:
    below = {"name": "leaf", "namespaces": ["default"], "max": {MEM: leaf}}
    top = {"name": "root", "min": {MEM: root}, "max": {MEM: root}, "children": [below]}
    world.quotas.upsert(tree(top, generation=generation))


WHOLE = {LABEL_POD_PLACEMENT: POD_PLACEMENT_WHOLE_DEVICE}
SMALLER = (
    "a larger max of elastic quota root/leaf, or a node with smaller GPUs: whole GPUs of node n1 count "
    "{} units, which alone exceeds it"
)
ENDS = "wait for pods of elastic quota root/leaf to end, or raise the max of it"
NO_ROOM = "; none of these nodes has enough capacity at the moment"


async def ask_whole(browser: Browser, world: World, mem: int, *nodes: str, count: int = 1) -> None:
    labels = {**WHOLE, LABEL_POD_GPU_COUNT: str(count)}
    world.api.create(pod_object("waits", mem, labels=labels))
    world.see("waits")
    await ask_again(browser, world, "waits", *nodes)


@pytest.mark.parametrize(
    ("root", "leaf", "expected"),
    [
        (30, 4, "wait for pods of elastic quota root/leaf to end, or raise the max of it"),
        (4, 4, "wait for pods of elastic quotas root/leaf and root to end, or raise the max of each"),
        (30, 2, "request less, or raise the max of elastic quota root/leaf: the request alone exceeds it"),
    ],
)
async def test_every_exceeded_quota_is_named(
    browser: Browser, world: World, root: int, leaf: int, expected: str
) -> None:
    world.add_node(gpu_node("n1", 8 * GIB))
    await give(browser, world, "there", "n1", 2)
    limit(world, root=root, leaf=leaf)
    await ask(browser, world, "waits", "n1", mem=3)

    assert suggestion(world) == expected


async def test_a_lack_of_capacity_is_mentioned_next_to_the_quota(browser: Browser, world: World) -> None:
    world.add_node(gpu_node("n1", 8 * GIB))
    await give(browser, world, "there", "n1", 6)
    limit(world, root=30, leaf=8)
    await ask(browser, world, "waits", "n1", mem=4)

    assert suggestion(world) == (
        "wait for pods of elastic quota root/leaf to end, or raise the max of it; none of these nodes has enough capacity at the moment"
    )


async def test_no_room_is_promised_to_a_pod_that_its_quota_refuses_by_now(
    browser: Browser, world: World
) -> None:
    world.add_node(gpu_node("n1", 6 * GIB))
    await give(browser, world, "there", "n1", 5)
    await ask(browser, world, "waits", "n1", mem=4)
    world.add_node(gpu_node("n1", 16 * GIB))
    assert suggestion(world) == "node n1 has enough capacity now; kube-scheduler retries automatically"

    limit(world, root=30, leaf=8)

    assert suggestion(world) == "wait for pods of elastic quota root/leaf to end, or raise the max of it"


async def test_once_its_quota_admits_a_pod_the_current_shortage_is_reported(
    browser: Browser, world: World
) -> None:
    world.add_node(gpu_node("n1", 8 * GIB))
    await give(browser, world, "there", "n1", 2)
    limit(world, root=30, leaf=4)
    await ask(browser, world, "waits", "n1", mem=4)

    limit(world, root=30, leaf=30, generation=2)

    assert suggestion(world) == "node n1 has enough capacity now; kube-scheduler retries automatically"


async def test_free_whole_gpus_are_not_promised_to_a_pod_that_its_quota_refuses(
    browser: Browser, world: World
) -> None:
    world.add_node(gpu_node("n1", 16 * GIB))
    await give(browser, world, "there", "n1", 1)
    limit(world, root=30, leaf=17)
    await ask_whole(browser, world, 4, "n1")
    world.add_node(gpu_node("n1", 16 * GIB, 16 * GIB))

    assert suggestion(world) == "node n1 has enough capacity now; kube-scheduler retries automatically"
    limit(world, root=30, leaf=16, generation=2)
    assert suggestion(world) == ENDS
    limit(world, root=30, leaf=15, generation=3)
    assert suggestion(world) == SMALLER.format(16)


@pytest.mark.parametrize(
    ("leaf", "count", "expected"),
    [
        (7, 1, SMALLER.format(8)),
        (8, 1, ENDS),
        (15, 2, SMALLER.format(16)),
        (3, 1, "request less, or raise the max of elastic quota root/leaf: the request alone exceeds it"),
    ],
)
async def test_whole_gpus_count_with_all_their_units(
    browser: Browser, world: World, leaf: int, count: int, expected: str
) -> None:
    for name, size in (("n0", 16), ("n1", 8)):
        world.add_node(gpu_node(name, size * GIB, size * GIB))
    world.add_node(gpu_node("other", 8 * GIB))
    await give(browser, world, "there", "other", 2)
    limit(world, root=60, leaf=leaf)
    await ask_whole(browser, world, 4 * count, "n0", "n1", count=count)

    assert suggestion(world) == expected


async def test_room_is_suggested_only_on_gpus_that_the_quota_grants_the_pod(
    browser: Browser, world: World
) -> None:
    world.add_node(gpu_node("small", 6 * GIB))
    world.add_node(gpu_node("large", 16 * GIB))
    await give(browser, world, "there", "small", 1)
    limit(world, root=30, leaf=12)
    await ask_whole(browser, world, 4, "small", "large")
    assert suggestion(world).startswith("a GPU with 4 GiB completely free: ")

    await give(browser, world, "more", "large", 4)
    limit(world, root=30, leaf=10, generation=2)

    assert suggestion(world) == ENDS + NO_ROOM


async def test_neither_a_label_nor_a_division_is_suggested_for_gpus_that_the_quota_refuses(
    browser: Browser, world: World
) -> None:
    world.add_node(gpu_node("n1", 16 * GIB, 16 * GIB, mode=NodeMode.TOPOLOGY))
    limit(world, root=30, leaf=30)
    await ask_whole(browser, world, 4, "n1")
    assert suggestion(world).startswith("node n1 is in mode topology: `kubectl label node n1 ")
    limit(world, root=30, leaf=12, generation=2)
    assert suggestion(world).startswith("a node with the label ack.node.gpu.schedule=share ")
    mistake = "label gpushare.dev/max-pods=many is not a number from 1; correct or remove it"
    shut = gpu_node("n1", 16 * GIB, 16 * GIB)
    world.add_node(msgspec.structs.replace(shut, refusal=mistake, problem=mistake))
    assert suggestion(world).startswith("a node with the label ack.node.gpu.schedule=share ")
    limit(world, root=30, leaf=30, generation=3)
    assert suggestion(world).startswith("node n1, once its labels and annotations are corrected")


@pytest.mark.parametrize("leaf", [31, 32])
async def test_a_division_is_suggested_if_the_quota_grants_as_many_whole_gpus(
    browser: Browser, world: World, leaf: int
) -> None:
    world.add_node(gpu_node("n1", 16 * GIB, 16 * GIB))
    limit(world, root=60, leaf=leaf)
    await ask_whole(browser, world, 20, "n1")

    assert ("gpu-count" in suggestion(world)) == (leaf == 32)
