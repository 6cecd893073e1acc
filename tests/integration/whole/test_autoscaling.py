"""Node templates match what nodes advertise, and pods are pending in the form that autoscalers look for.

Where they would not notice that a node is needed, a placeholder pod requests it.
"""

import contextlib
import copy
import json
import sys
from collections.abc import AsyncIterator

import pytest

from gpushare.api import names
from gpushare.api.quantity import MemoryUnit
from gpushare.scheduler.plugins.autoscaling.settings import INSTANCE_TYPE
from tests.autoscaler_rules import Answer, simulated
from tests.integration.whole.cluster import Json, node_of, waits_because
from tests.integration.whole.world import World, gpu_pod, run, shared_node, until

pytestmark = pytest.mark.asyncio(loop_scope="session")

NODES = (
    shared_node("four", "core-mem-4", "core_mem", (INSTANCE_TYPE, "gpu.four")),
    shared_node("single", "v100-16384", "share", (INSTANCE_TYPE, "gpu.single")),
)
STAND_INS = "gpushare-placeholders"
TEMPLATE = (sys.executable, "-m", "gpushare", "node-template")
UNITS = {MemoryUnit.GIB: 60, MemoryUnit.MIB_128: 504}


async def template(cluster: World, node: str, *options: str) -> Json:
    """The command's template for a running node."""
    got = await cluster.kubectl("get", "node", node, "-o", "json")
    ran = await run(*TEMPLATE, "--node", "-", *options, stdin=got.out)
    assert ran.code == 0, ran.err
    return dict(json.loads(ran.out))


async def test_a_template_has_the_resources_of_a_node_of_the_group_in_each_unit(cluster: World) -> None:
    try:
        for unit in (MemoryUnit.MIB_128, MemoryUnit.GIB):
            before = await template(cluster, "four", "--unit", unit.setting)
            await cluster.playground.set_unit(unit)
            await cluster.offers("four", UNITS[unit])
            # Each is advertised by a write of its own.
            await cluster.offers("four", 4, names.GPU_COUNT)
            await cluster.offers("four", 400, names.GPU_CORE)
            assert await template(cluster, "four") == before
            advertised = cluster.nodes.items["four"]["status"]["allocatable"]
            assert before["capacity"] == {
                resource: str(advertised[resource])
                for resource in (names.GPU_MEM, names.GPU_COUNT, names.GPU_CORE)
            }
            labels = cluster.nodes.items["four"]["metadata"]["labels"]
            assert before["labels"].items() <= labels.items()
    finally:
        await cluster.playground.set_unit(MemoryUnit.GIB)
        await cluster.offers("four", UNITS[MemoryUnit.GIB])


def placeholders(cluster: World) -> list[Json]:
    """Existing placeholder pods as cluster-autoscaler selects them: once they are reported unschedulable."""
    return [
        pod
        for key, pod in cluster.pods.items.items()
        if key.startswith(f"{STAND_INS}/") and waits_because(pod)
    ]


def autoscaled(cluster: World, *there: str) -> Answer:
    """cluster-autoscaler's decision for the existing pods, with these nodes, and a group of nodes like the first."""
    template = copy.deepcopy(cluster.nodes.items[there[0]])
    nodes = [cluster.nodes.items[name] for name in there]
    pods = [pod for pod in cluster.pods.items.values() if not node_of(pod) or node_of(pod) in there]
    return simulated(template, pods, nodes)


@contextlib.asynccontextmanager
async def broken_up(cluster: World) -> AsyncIterator[None]:
    """Five units free on each GPU of ``four``, nothing else free, and a pending pod of eight; the extender
    creates placeholder pods.
    """
    there = [f"there-{number}" for number in range(4)]
    assert (await cluster.kubectl("cordon", "single")).code == 0
    assert (await cluster.kubectl("create", "namespace", STAND_INS)).code == 0
    try:
        await cluster.create(*(gpu_pod(name, 10) for name in there))
        await cluster.run_all(*there)
        async with cluster.opted_in("--placeholder-pods", STAND_INS, "--placeholder-pods-min-pending", "1"):
            await cluster.create(gpu_pod("large", 8))
            yield
    finally:
        await cluster.kubectl("uncordon", "single")
        await cluster.kubectl("delete", "namespace", STAND_INS)


async def until_gone(cluster: World) -> None:
    await cluster.pods.until(
        lambda: not any(key.startswith(f"{STAND_INS}/") for key in cluster.pods.items),
        "no placeholder pod is left",
    )


async def test_a_placeholder_pod_requests_the_node_and_is_deleted_once_it_exists(
    cluster: World,
) -> None:
    async with broken_up(cluster):
        await cluster.pods.until(lambda: len(placeholders(cluster)) == 1, "there is a placeholder pod")
        (made,) = placeholders(cluster)
        assert made["metadata"]["labels"] == {names.LABEL_STANDS_FOR: cluster.pod("large")["metadata"]["uid"]}
        found = autoscaled(cluster, "four")
        assert found.lacking == [made["metadata"]["name"]], "of the pod itself it thinks that it fits"
        assert found.nodes == 1
        await cluster.event("large", "ScaleUpRequested", "gpu.four")
        report = await cluster.kubectl("inspect", "cgpu", "--fragmentation")
        assert "stand-in" not in report.out
        assert (await cluster.metrics())["placeholder_pods"] == 1

        async def one_is_pending() -> bool:
            return (await cluster.metrics())["pending_pods"] == 1

        await until(one_is_pending, "the pod alone is counted as pending")
        # As when the node has joined.
        assert (await cluster.kubectl("uncordon", "single")).code == 0
        await cluster.run_all("large")
        await until_gone(cluster)


async def test_a_restarted_scheduler_creates_no_second_placeholder_and_forgets_none(cluster: World) -> None:
    async with broken_up(cluster):
        await cluster.pods.until(
            lambda: any(key.startswith(f"{STAND_INS}/") for key in cluster.pods.items), "one is made"
        )
        cluster.playground.kill("extender")
        await cluster.playground.extender_ready()
        await cluster.pods.until(lambda: len(placeholders(cluster)) == 1, "it says what it is for")
        (before,) = placeholders(cluster)
        # The pod is filtered and refused again; it has its placeholder pod.
        await cluster.kubectl("annotate", "pod", "large", "asked=again")
        await cluster.create(gpu_pod("larger", 9))
        await cluster.pods.until(lambda: len(placeholders(cluster)) == 2, "another pod has one, too")
        assert before["metadata"]["uid"] in {pod["metadata"]["uid"] for pod in placeholders(cluster)}
        assert autoscaled(cluster, "four").nodes == 1, "a new node holds both"
        cluster.playground.kill("extender")
        await cluster.delete("large", "larger")
        await until_gone(cluster)
