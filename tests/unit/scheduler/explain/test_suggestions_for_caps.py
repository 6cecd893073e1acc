"""Suggestions for a pod that GPUs and nodes refuse because their limit of pods is reached."""

import pytest
from msgspec import structs

from gpushare.api.node.modes import NodeMode
from tests.unit.scheduler.explain.test_decisions import GIB, ask, give
from tests.unit.scheduler.server.test_app import Browser
from tests.unit.scheduler.world import World, gpu_node

ENDS = "wait for a pod to end on one of these GPUs"
GPU, NODE = "ack.node.gpu.max-pod", "gpushare.dev/max-pods-per-node"
AT_MOST = ": node n1 is in mode {}, where a GPU has 1 pod at most, regardless of labels"


@pytest.mark.parametrize(
    ("mode", "caps", "isolated", "suggestion"),
    [
        (NodeMode.SHARE, (1, None), 16, f"{ENDS}, or raise the cap on node n1 (node label {GPU})"),
        (NodeMode.SHARE, (1, None), 1, f"{ENDS}, or raise the cap on node n1 (node label {GPU})"),
        (NodeMode.SHARE, (None, 1), 16, f"{ENDS}, or raise the cap on node n1 (node label {NODE})"),
        (NodeMode.SHARE, (1, 1), 16, f"{ENDS}, or raise the cap on node n1 (node labels {GPU} and {NODE})"),
        (NodeMode.CGPU, (1, None), 16, f"{ENDS}, or raise the cap on node n1 (node label {GPU})"),
        (NodeMode.CGPU, (1, None), 1, ENDS + AT_MOST.format("cgpu")),
        (NodeMode.MPS, (1, None), 1, ENDS + AT_MOST.format("mps")),
        (NodeMode.CGPU, (1, 1), 1, ENDS + AT_MOST.format("cgpu")),
        (NodeMode.CGPU, (16, 1), 16, f"{ENDS}, or raise the cap on node n1 (node label {NODE})"),
    ],
)
async def test_a_larger_cap_is_suggested_if_a_label_can_set_it(
    browser: Browser,
    world: World,
    mode: NodeMode,
    caps: tuple[int | None, int | None],
    isolated: int,
    suggestion: str,
) -> None:
    world.view.isolated_cap = isolated
    on_gpu, on_node = caps
    world.add_node(
        structs.replace(gpu_node("n1", 8 * GIB, mode=mode), max_pods=on_gpu, max_node_pods=on_node)
    )
    await give(browser, world, "there", "n1", 2)
    await ask(browser, world, "waits", "n1", mem=2)

    (one,) = world.decisions.waiting()

    assert (one.category, one.suggestion) == ("pods", suggestion)


async def test_what_else_is_short_next_to_the_pod_limit_of_an_isolated_gpu_is_reported(
    browser: Browser, world: World
) -> None:
    world.view.isolated_cap = 1
    world.add_node(structs.replace(gpu_node("n1", 8 * GIB, mode=NodeMode.CORE_MEM), max_pods=1))
    await give(browser, world, "there", "n1", 2, core=60)
    await ask(browser, world, "waits", "n1", mem=2, core=60)

    (one,) = world.decisions.waiting()

    assert one.suggestion == (
        f"{ENDS}{AT_MOST.format('core_mem')}; that alone is not enough: "
        "no single GPU has 2 GiB and 60% compute free (closest: GPU 0 with 6 GiB and 40%)"
    )
