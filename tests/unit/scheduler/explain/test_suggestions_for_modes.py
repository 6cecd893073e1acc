"""Which node is named if another mode of it would let a pod in."""

import pytest
from msgspec import structs

from gpushare.api.node.modes import NodeMode
from gpushare.scheduler.plugins.explain.decision_log import PendingPod
from tests.unit.scheduler.explain.test_decisions import GIB, ask, give
from tests.unit.scheduler.server.test_app import Browser
from tests.unit.scheduler.world import World, gpu_node, pod_object

SELECTOR = "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."


pytestmark = pytest.mark.usefixtures("without_nodes")


def selects(world: World, mode: str, mem: int = 2) -> PendingPod:
    """A pod that requires nodes of an absent mode, as the watch shows it."""
    pod = pod_object("waits", mem)
    pod["spec"]["nodeSelector"] = {"ack.node.gpu.schedule": mode}
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": SELECTOR}
    pod["status"]["conditions"] = [condition]
    world.api.create(pod)
    world.see("waits")
    return waits(world)


def waits(world: World) -> PendingPod:
    return next(one for one in world.decisions.waiting() if one.key == "default/waits")


async def test_the_node_without_pods_is_labelled_for_a_selector_and_the_needs_of_mps_are_named(
    browser: Browser, world: World
) -> None:
    world.add_node(gpu_node("a", 8 * GIB, mode=NodeMode.CGPU))
    world.add_node(gpu_node("b", 8 * GIB))
    await give(browser, world, "there", "a", 2)

    assert selects(world, "mps").suggestion == (
        "no node is in mode mps, which its nodeSelector requires; node b is in mode share: "
        "`kubectl label node b ack.node.gpu.schedule=mps --overwrite` (NVIDIA's MPS daemon, nvidia-cuda-mps-control, must be installed "
        "on that node); or another selector"
    )


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (
            "mps",
            "--overwrite`, once its 1 pod has ended: mode cgpu enforces the shares of running pods (NVIDIA",
        ),
        (
            "share",
            "--overwrite`, once its 1 pod has ended: mode cgpu enforces the shares of running pods; or",
        ),
    ],
)
async def test_pods_with_enforced_shares_end_before_their_nodes_mode_changes(
    browser: Browser, world: World, mode: str, expected: str
) -> None:
    world.add_node(gpu_node("a", 8 * GIB, mode=NodeMode.CGPU))
    await give(browser, world, "there", "a", 2)

    assert expected in selects(world, mode).suggestion


async def test_a_node_whose_pods_lose_nothing_is_labelled_while_they_run(
    browser: Browser, world: World
) -> None:
    world.add_node(gpu_node("a", 8 * GIB))
    await give(browser, world, "there", "a", 2)

    assert "ack.node.gpu.schedule=cgpu --overwrite`; or another" in selects(world, "cgpu").suggestion


async def test_for_whole_gpus_a_node_that_enforces_shares_is_the_second_choice(
    browser: Browser, world: World
) -> None:
    world.add_node(gpu_node("a", 8 * GIB, 8 * GIB, mode=NodeMode.CGPU))
    world.add_node(gpu_node("b", 8 * GIB, 8 * GIB, 8 * GIB))
    await give(browser, world, "there", "a", 2)
    for name in ("one", "two"):
        await give(browser, world, name, "b", 2)
    whole = pod_object("waits")
    whole["spec"]["containers"][0]["resources"]["limits"] = {"aliyun.com/gpu": 1}
    world.api.create(whole)
    world.see("waits")
    await browser.post("filter", {"Pod": whole, "Nodes": None, "NodeNames": ["a", "b"]})

    assert waits(world).suggestion.startswith(
        "node b is in mode share: `kubectl label node b ack.node.gpu.schedule=topology --overwrite`; or one"
    )


async def test_compute_in_mode_cgpu_is_suggested_once_its_memory_pods_have_ended(
    browser: Browser, world: World
) -> None:
    """It would take nothing from other pods, but the two kinds are kept apart all the same."""
    world.add_node(gpu_node("a", 8 * GIB, mode=NodeMode.CGPU))
    await give(browser, world, "there", "a", 2)
    await ask(browser, world, "waits", "a", mem=2, core=20)

    assert ", which helps once its 1 pod with GPU memory only has ended" in waits(world).suggestion


@pytest.mark.parametrize(
    ("mistake", "helps"),
    [
        ("label ack.node.gpu.schedule=shrae is unknown; use one of default, share", True),
        ("label gpushare.dev/max-pods=many is not a number from 1; correct or remove it", False),
    ],
)
async def test_a_correction_is_suggested_if_the_node_would_take_the_pod_then(
    browser: Browser, world: World, mistake: str, helps: bool
) -> None:
    shut = gpu_node("a", 8 * GIB, mode=NodeMode.TOPOLOGY)
    world.add_node(structs.replace(shut, refusal=mistake, problem=mistake))
    await ask(browser, world, "waits", "a", mem=2)

    assert (
        waits(world).suggestion.startswith("node a, once its labels and annotations are corrected") is helps
    )
