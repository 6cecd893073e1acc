"""Which node is suggested to a pod whose nodeSelector requires labels that no node has."""

import pytest

from gpushare.api.node.modes import NodeMode
from gpushare.scheduler.cache.cache import NodeRecord
from tests.unit.scheduler.explain.test_decisions import GIB, give
from tests.unit.scheduler.server.test_app import Browser
from tests.unit.scheduler.world import World, gpu_node, pod_object

NO_LABELS = "3 node(s) didn't match Pod's node affinity/selector."
SELECTS = "a node that matches its nodeSelector, {}: "


pytestmark = pytest.mark.usefixtures("without_nodes")


def suggestion(world: World, rules_text: str = NO_LABELS, mem: int = 4, **selector: str) -> str:
    pod = pod_object("waits", mem)
    pod["spec"]["nodeSelector"] = selector
    message = f"0/3 nodes are available: {rules_text}"
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    pod["status"]["conditions"] = [condition]
    world.api.create(pod)
    world.see("waits")
    return next(one.suggestion for one in world.decisions.waiting() if one.key == "default/waits")


async def test_a_node_is_named_that_would_have_room_for_the_pod(browser: Browser, world: World) -> None:
    world.add_node(gpu_node("a", 16 * GIB, mode=NodeMode.TOPOLOGY))
    world.add_node(gpu_node("b", 8 * GIB))
    world.add_node(gpu_node("c", 8 * GIB))
    world.view.upsert_node(NodeRecord(gpu_node("d", 16 * GIB), "", cordoned={}))
    await give(browser, world, "there", "b", 6)

    advice = SELECTS.format("disk=ssd")
    assert suggestion(world, disk="ssd") == (
        f"{advice}`kubectl label node c disk=ssd` (it has enough capacity); or another selector"
    )


async def test_other_rules_of_its_scheduler_may_concern_the_named_node(
    browser: Browser, world: World
) -> None:
    world.add_node(gpu_node("a", 8 * GIB))
    rules_text = (
        "1 node(s) had untolerated taint {team: ml}, 2 node(s) didn't match Pod's node affinity/selector."
    )

    advice = (
        "`kubectl label node a disk=ssd` (it has enough capacity, unless another rule excludes the node); or"
    )
    assert advice in suggestion(world, rules_text, disk="ssd")


async def test_if_no_node_has_room_that_is_reported_in_place_of_a_command(
    browser: Browser, world: World
) -> None:
    world.add_node(gpu_node("a", 16 * GIB, mode=NodeMode.TOPOLOGY))
    world.add_node(gpu_node("b", 8 * GIB))
    advice, then = (
        SELECTS.format("disk=ssd"),
        "has enough capacity now, regardless of labels; or another selector",
    )
    assert suggestion(world, mem=9, disk="ssd") == f"{advice}no node {then}"

    world.view.upsert_node(NodeRecord(gpu_node("d", 16 * GIB), "", cordoned={}))
    assert suggestion(world, mem=9, disk="ssd") == f"{advice}no node that is not cordoned {then}"


@pytest.mark.parametrize(
    ("mem", "expected"),
    [
        (4, "`kubectl label node b pool=a` (it has enough capacity); or another selector"),
        (9, "no node in mode cgpu has enough capacity now, regardless of labels; or another selector"),
    ],
)
async def test_of_nodes_in_the_required_mode_one_is_named(
    browser: Browser, world: World, mem: int, expected: str
) -> None:
    world.add_node(gpu_node("a", 16 * GIB))
    world.add_node(gpu_node("b", 8 * GIB, mode=NodeMode.CGPU))

    selector = {"ack.node.gpu.schedule": "cgpu", "pool": "a"}
    wanted = SELECTS.format("ack.node.gpu.schedule=cgpu and pool=a")
    assert suggestion(world, mem=mem, **selector) == f"{wanted}{expected}"
