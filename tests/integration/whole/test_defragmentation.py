"""Pods move for a pending one although total memory suffices: only if enabled, within budgets, to where they fit."""

import contextlib
import json
from collections.abc import AsyncIterator

import pytest

from tests.integration.whole.cluster import Json, is_running, node_of, record_of, waits_because
from tests.integration.whole.world import World, gpu_pod, shared_node
from tests.unit.inspect.schema import faults

pytestmark = pytest.mark.asyncio(loop_scope="session")

#: 15 GiB on each of four GPUs, and 16 on one.
NODES = (shared_node("four", "core-mem-4"), shared_node("single", "v100-16384"))
APPS = [f"app-{number}" for number in range(4)]
OPTIONS = ("--defragmentation", "--defragmentation-interval", "1", "--defragmentation-min-pending", "1")


def deployment(name: str, units: int) -> Json:
    pod = gpu_pod("template", units, labels={"app": name, "part": "of-it"})
    del pod["spec"]["restartPolicy"]
    template = {"metadata": {"labels": pod["metadata"]["labels"]}, "spec": pod["spec"]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template},
    }


def pods_of(cluster: World, *apps: str) -> list[Json]:
    return [
        pod for pod in cluster.pods.items.values() if (pod["metadata"].get("labels") or {}).get("app") in apps
    ]


@contextlib.asynccontextmanager
async def fragmented(cluster: World) -> AsyncIterator[set[str]]:
    """A pod of 8 on each GPU of ``four``, 7 free next to each, and a node with 12 free; yields the pods' UIDs."""
    await cluster.create(gpu_pod("small", 4, node="single"))
    await cluster.run_all("small")
    assert (await cluster.kubectl("cordon", "single")).code == 0
    assert (await cluster.apply(*(deployment(name, 8) for name in APPS))).code == 0
    await cluster.pods.until(
        lambda: len(pods_of(cluster, *APPS)) == 4 and all(map(is_running, pods_of(cluster, *APPS))),
        "all four run",
        detail=lambda: [waits_because(pod) for pod in pods_of(cluster, *APPS)],
    )
    await cluster.settled()
    assert {node_of(pod) for pod in pods_of(cluster, *APPS)} == {"four"}
    assert len({share["uuid"] for pod in pods_of(cluster, *APPS) for share in record_of(pod)}) == 4
    assert (await cluster.kubectl("uncordon", "single")).code == 0
    try:
        yield {pod["metadata"]["uid"] for pod in pods_of(cluster, *APPS)}
    finally:
        await cluster.kubectl("delete", "deployment", *APPS, "--ignore-not-found", "--wait=false")


async def waits(cluster: World, name: str) -> None:
    await cluster.pods.until(
        lambda: "largest free: 7 GiB" in waits_because(cluster.pod(name)),
        f"{name} waits",
        detail=lambda: waits_because(cluster.pod(name)),
    )


async def all_settled(cluster: World) -> None:
    await cluster.pods.until(
        lambda: len(pods_of(cluster, *APPS)) == 4 and all(map(is_running, pods_of(cluster, *APPS))),
        "what moved runs again",
        detail=lambda: [(node_of(pod), waits_because(pod)) for pod in pods_of(cluster, *APPS)],
    )


async def test_nothing_moves_until_enabled_and_then_the_pending_pod_runs(cluster: World) -> None:
    async with fragmented(cluster) as before:
        await cluster.create(gpu_pod("wide", 14))
        await waits(cluster, "wide")
        report = await cluster.kubectl("inspect", "cgpu", "--fragmentation")
        assert "1 would fit after moves" in report.out
        document = json.loads((await cluster.kubectl("inspect", "cgpu", "--fragmentation", "-o", "json")).out)
        assert faults(document) == []
        assert [(one["name"], one["fits"]) for one in document["waiting"]] == [("wide", "once moved")]
        assert {pod["metadata"]["uid"] for pod in pods_of(cluster, *APPS)} == before
        async with cluster.opted_in(*OPTIONS):
            # Any event of the pod makes kube-scheduler try again; by itself it does within five minutes.
            await cluster.kubectl("annotate", "pod", "wide", "asked=again")
            await cluster.run_all("wide")
            await all_settled(cluster)
        moved_pods = [pod for pod in pods_of(cluster, *APPS) if pod["metadata"]["uid"] not in before]
        assert [node_of(pod) for pod in moved_pods] == ["single"]
        assert node_of(cluster.pod("wide")) == "four"
        await cluster.event("wide", "DefragmentationSucceeded", "of four")
        moved = next(
            one for one in cluster.events.items.values() if one.get("reason") == "EvictedForDefragmentation"
        )
        assert "default/wide" in moved["note"]
        assert "kept on node single" in moved["note"]


async def test_a_scheduler_killed_while_pods_move_leaves_no_pod_without_a_node(cluster: World) -> None:
    async with fragmented(cluster) as before, cluster.opted_in(*OPTIONS):
        await cluster.create(gpu_pod("wide", 14))
        await cluster.pods.until(
            lambda: (
                any(uid not in {pod["metadata"]["uid"] for pod in pods_of(cluster, *APPS)} for uid in before)
                or any(pod["metadata"].get("deletionTimestamp") for pod in pods_of(cluster, *APPS))
            ),
            "one is on its way",
        )
        cluster.playground.kill("extender")
        await cluster.run_all("wide")
        await all_settled(cluster)
