"""What autoscalers are told of nodes to come is what nodes advertise, and pods wait in the form that they look for."""

import json
import sys

import pytest

from gpushare.model import names
from gpushare.model.quantity import MemoryUnit
from tests.integration.whole.seen import Json, waits_because
from tests.integration.whole.world import World, gpu_pod, run, shared_node

pytestmark = pytest.mark.asyncio(loop_scope="module")

NODES = (shared_node("four", "core-mem-4", "core_mem"), shared_node("single", "v100-16384"))
TEMPLATE = (sys.executable, "-m", "gpushare", "node-template")
UNITS = {MemoryUnit.GIB: 60, MemoryUnit.MIB_128: 504}


async def told(seen: World, node: str, *options: str) -> Json:
    """What the command says of a living node."""
    got = await seen.kubectl("get", "node", node, "-o", "json")
    ran = await run(*TEMPLATE, "--node", "-", *options, stdin=got.out)
    assert ran.code == 0, ran.err
    return dict(json.loads(ran.out))


async def test_a_template_says_what_a_node_of_the_group_has_in_each_unit(seen: World) -> None:
    try:
        for unit in (MemoryUnit.MIB_128, MemoryUnit.GIB):
            before = await told(seen, "four", "--unit", unit.setting)
            await seen.cluster.set_unit(unit)
            await seen.offers("four", UNITS[unit])
            assert await told(seen, "four") == before
            advertised = seen.nodes.items["four"]["status"]["allocatable"]
            assert before["capacity"] == {
                resource: str(advertised[resource])
                for resource in (names.GPU_MEM, names.GPU_COUNT, names.GPU_CORE)
            }
            labels = seen.nodes.items["four"]["metadata"]["labels"]
            assert before["labels"].items() <= labels.items()
    finally:
        await seen.cluster.set_unit(MemoryUnit.GIB)
        await seen.offers("four", UNITS[MemoryUnit.GIB])


async def test_a_pod_that_no_single_gpu_holds_waits_in_the_form_that_autoscalers_look_for(
    seen: World,
) -> None:
    there = [f"there-{number}" for number in range(4)]
    await seen.create(*(gpu_pod(name, 10, node="four") for name in there))
    await seen.run_all(*there)
    await seen.create(gpu_pod("large", 8, node="four"))
    await seen.pods.until(
        lambda: "no single GPU has 8 GiB free" in waits_because(seen.pod("large")), "it waits"
    )
    (condition,) = (one for one in seen.pod("large")["status"]["conditions"] if one["type"] == "PodScheduled")
    assert (condition["status"], condition["reason"]) == ("False", "Unschedulable")
    assert not seen.pod("large")["status"].get("nominatedNodeName")
