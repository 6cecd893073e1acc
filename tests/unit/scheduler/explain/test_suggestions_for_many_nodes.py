"""Suggestions on a cluster of 300 nodes consider all of them, not only those with the most free memory."""

import msgspec
import pytest

from gpushare.api.node.device import NodeDevices
from gpushare.api.node.modes import NodeMode
from gpushare.scheduler.cache.cache import NodeRecord
from gpushare.scheduler.plugins.explain import suggestions
from tests.unit.scheduler.explain.test_decisions import GIB, ask, give, suggestion
from tests.unit.scheduler.server.test_app import Browser
from tests.unit.scheduler.world import World, gpu_node

NODES = 300


pytestmark = pytest.mark.usefixtures("without_nodes")


def large(world: World, *, mode: NodeMode = NodeMode.SHARE, mib: int = 64 * GIB) -> list[str]:
    """All but one of the nodes, each with more free than that one."""
    names = [f"n{number:03}" for number in range(NODES - 1)]
    for name in names:
        world.add_node(gpu_node(name, mib, mode=mode))
    return names


def sick(node: NodeDevices) -> NodeDevices:
    gone = {"healthy": False, "reason": "GPU is lost"}
    return msgspec.structs.replace(
        node, devices=tuple(msgspec.structs.replace(one, **gone) for one in node.devices)
    )


async def test_the_nearest_node_is_named_although_others_have_more_free_of_another_kind(
    browser: Browser, world: World
) -> None:
    names = large(world)
    world.add_node(gpu_node("z", 8 * GIB, mode=NodeMode.CORE_MEM))
    await give(browser, world, "there", "z", 5, core=10)
    await ask(browser, world, "waits", *names, "z", mem=4, core=10)

    assert suggestion(world) == (
        "a GPU with 4 GiB and 10% compute free: the closest has 3 GiB free, GPU 0 of node z; "
        "deleting pod default/there (5 GiB and 10%) would be enough"
    )


async def test_new_room_is_seen_wherever_it_is(browser: Browser, world: World) -> None:
    names = large(world)
    world.add_node(gpu_node("z", 8 * GIB, mode=NodeMode.CORE_MEM))
    await give(browser, world, "there", "z", 5, core=10)
    await ask(browser, world, "waits", *names, "z", mem=4, core=10)
    await ask(browser, world, "elsewhere", *names, mem=4, core=10)
    world.view.remove_pod(world.view.bound["uid-there"])

    assert suggestion(world) == "node z has enough capacity now; kube-scheduler retries automatically"
    assert suggestion(world, "elsewhere").startswith(
        "the pod's node selector, affinity or tolerations leave 299 nodes (299 in mode share): `kubectl label node n000 "
    )
    assert suggestion(world, "elsewhere").endswith("; or other rules: node z has capacity")


async def test_the_one_cordoned_node_that_has_room_is_named(browser: Browser, world: World) -> None:
    for number in range(NODES):
        size = 8 * GIB if number == NODES - 1 else 2 * GIB
        world.view.upsert_node(NodeRecord(gpu_node(f"n{number:03}", size), "", cordoned={}))
    world.add_node(sick(gpu_node("z", 8 * GIB)))
    await ask(browser, world, "waits", "z", mem=4)

    assert suggestion(world).endswith(
        "; or `kubectl uncordon n299`: the node has enough capacity but is cordoned"
    )


async def test_the_one_node_that_a_label_makes_fit_is_named(browser: Browser, world: World) -> None:
    names = [f"n{number:03}" for number in range(NODES - 1)]
    for name in names:
        world.add_node(sick(gpu_node(name, 64 * GIB)))
    world.add_node(gpu_node("z", 8 * GIB))
    await ask(browser, world, "waits", *names, "z", mem=4, core=10)

    assert suggestion(world).startswith(
        "node z is in mode share: `kubectl label node z ack.node.gpu.schedule=core_mem --overwrite`; or "
    )


@pytest.mark.no_cover  # would take several times as long; other tests cover the same lines
async def test_a_larger_cap_is_suggested_only_where_it_would_suffice(browser: Browser, world: World) -> None:
    names = [f"n{number:03}" for number in range(NODES - 1)]
    for name in names:
        world.add_node(
            msgspec.structs.replace(gpu_node(name, 64 * GIB, mode=NodeMode.CORE_MEM), max_node_pods=1)
        )
        await give(browser, world, f"on-{name}", name, 2, core=100)
    world.add_node(msgspec.structs.replace(gpu_node("z", 8 * GIB, mode=NodeMode.CORE_MEM), max_pods=1))
    await give(browser, world, "there", "z", 3, core=10)
    await ask(browser, world, "waits", *names, "z", mem=4, core=10)

    assert suggestion(world).endswith(", or raise the cap on node z (node label ack.node.gpu.max-pod)")


async def test_a_list_of_many_requests_states_how_few_nodes_it_covers(
    browser: Browser, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suggestions, "_MOST_REASONS", NODES + 100)
    names = large(world, mib=2 * GIB)
    world.add_node(gpu_node("z", 2 * GIB))
    for name, mem in (("first", 4), ("second", 5), ("third", 4)):
        await ask(browser, world, name, *names, "z", mem=mem)
    few = "; of 300 nodes those 128 with the most free capacity were checked"

    texts = [suggestion(world, name) for name in ("first", "second", "third")]

    assert [one.endswith(few) for one in texts] == [False, True, False]
    assert texts[1].removesuffix(few) == texts[0]
