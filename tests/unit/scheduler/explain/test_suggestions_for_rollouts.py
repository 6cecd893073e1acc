"""Suggestions for a pod of a Deployment whose earlier pods hold the GPU that it needs."""

import pytest

from tests.unit.scheduler.explain.test_decisions import GIB, ask, give, suggestion
from tests.unit.scheduler.server.test_app import Browser
from tests.unit.scheduler.world import World, gpu_node

pytestmark = pytest.mark.usefixtures("without_nodes")

EARLIER = "serve-7578b4d5f-gpzqz"
PENDING = "serve-55f7c6f565-cfkw2"


async def test_an_update_that_waits_for_its_own_earlier_pods_is_advised_not_to_surge(
    browser: Browser, world: World
) -> None:
    world.add_node(gpu_node("n", 16 * GIB))
    await give(browser, world, EARLIER, "n", 10)
    await ask(browser, world, PENDING, "n", mem=10)

    assert suggestion(world, PENDING).endswith(
        "; or maxSurge: 0 in the strategy of Deployment default/serve, which is being updated: "
        "its old pods on node n hold the capacity that the new pod needs, and are only deleted once it is ready"
    )


@pytest.mark.parametrize(
    ("there", "mem"),
    [
        ("serve-55f7c6f565-2b4xz", 10),  # of the same version: more replicas than fit
        ("other-7578b4d5f-gpzqz", 10),
        ("serve-0-gpzqz", 10),  # of a Job
        (EARLIER, 17),  # more than the GPU has
    ],
)
async def test_no_such_suggestion_if_it_would_not_help(
    browser: Browser, world: World, there: str, mem: int
) -> None:
    world.add_node(gpu_node("n", 16 * GIB))
    await give(browser, world, there, "n", 10)
    await ask(browser, world, PENDING, "n", mem=mem)

    assert "maxSurge" not in suggestion(world, PENDING)


async def test_a_pod_whose_predecessor_ends_already_waits_for_that(browser: Browser, world: World) -> None:
    world.add_node(gpu_node("n", 16 * GIB))
    await give(browser, world, EARLIER, "n", 10)
    await ask(browser, world, PENDING, "n", mem=10)
    world.api.pods[f"default/{EARLIER}"]["metadata"]["deletionTimestamp"] = "2026-11-29T01:03:24Z"
    world.see(EARLIER)

    assert "maxSurge" not in suggestion(world, PENDING)
