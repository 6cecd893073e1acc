"""Suggestions for a pod if suitable GPUs are out of service."""

import msgspec
import pytest

from gpushare.api.node.device import NodeDevices
from tests.unit.scheduler.explain.test_decisions import GIB, ask
from tests.unit.scheduler.server.test_app import Browser
from tests.unit.scheduler.world import World, gpu_node

RESET = (
    "GPU 0 of node n: once its pods have ended, `nvidia-smi -r -i 0` there, or a reboot (`gpushare doctor` and "
    "the node's condition GPUShareReady say more)"
)


pytestmark = pytest.mark.usefixtures("without_nodes")


def without(*, lost: str = "", cordoned: str = "") -> NodeDevices:
    """A node with GPUs out of service, by their indices."""
    node = gpu_node("n", *([8 * GIB] * len(lost + cordoned)))
    devices = tuple(
        msgspec.structs.replace(
            one,
            healthy=str(one.index) not in lost,
            reason="GPU is lost" if str(one.index) in lost else "",
            cordoned=str(one.index) in cordoned,
        )
        for one in node.devices
    )
    return msgspec.structs.replace(node, devices=devices)


def suggestion(world: World) -> str:
    (one,) = world.decisions.waiting()
    assert one.category == "health"
    return one.suggestion


async def test_the_reset_of_a_lost_gpu_and_the_node_excluded_by_the_pods_rules_are_named(
    browser: Browser, world: World
) -> None:
    world.add_node(without(lost="0"))
    world.add_node(gpu_node("other", 8 * GIB))
    await ask(browser, world, "waits", "n", mem=2)

    assert suggestion(world) == (
        f"GPUs that are back in service: {RESET}; node other has capacity, but the pod's node selector, affinity or tolerations "
        "exclude it"
    )


async def test_a_lost_mig_instance_is_reset_with_its_gpu(browser: Browser, world: World) -> None:
    node = gpu_node("n", 8 * GIB, 8 * GIB)
    instances = tuple(
        msgspec.structs.replace(one, index=16 + one.index, uuid=f"MIG-{one.index}", healthy=False, reason="x")
        for one in node.devices
    )
    world.add_node(msgspec.structs.replace(node, devices=instances))
    await ask(browser, world, "waits", "n", mem=2)

    assert suggestion(world).startswith(
        "GPUs that are back in service: GPUs 0/0 and 0/1 of node n: once nothing uses any instance of GPU 0, `nvidia-smi -r -i 0` there"
    )


@pytest.mark.parametrize("described", [True, False], ids=["GPUs known", "GPUs not known"])
async def test_a_driver_that_does_not_work_needs_no_reset_of_its_gpus(
    browser: Browser, world: World, described: bool
) -> None:
    refusal = (
        "node has no working GPU (NVML: Driver Not Loaded. Run `nvidia-smi` as root on the node to load it)"
    )
    node = msgspec.structs.replace(without(lost="0"), refusal=refusal)
    world.add_node(node if described else msgspec.structs.replace(node, devices=()))
    await ask(browser, world, "waits", "n", mem=2)

    assert suggestion(world) == "a working driver: node n (`gpushare doctor` says what to do)"
    assert world.decisions.waiting()[0].reason == refusal


async def test_each_gpu_is_listed_with_what_to_do(browser: Browser, world: World) -> None:
    world.add_node(without(lost="02", cordoned="1"))
    await ask(browser, world, "waits", "n", mem=2)

    assert suggestion(world) == (
        "GPUs that are back in service: GPUs 0 and 2 of node n: once their pods have ended, `nvidia-smi -r -i 0,2` there, or "
        "a reboot (`gpushare doctor` and the node's condition GPUShareReady say more); GPU 1 of node n is cordoned: "
        "`kubectl annotate node n gpushare.dev/cordoned-gpus-`"
    )
