"""Pods move for one that waits although there is room in all: only where asked for, as budgets allow, to where they fit."""

import contextlib
import json
from collections.abc import AsyncIterator

import pytest

from tests.integration.whole.seen import Json, is_running, node_of, record_of, waits_because
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


def pods_of(seen: World, *apps: str) -> list[Json]:
    return [
        pod for pod in seen.pods.items.values() if (pod["metadata"].get("labels") or {}).get("app") in apps
    ]


@contextlib.asynccontextmanager
async def fragmented(seen: World) -> AsyncIterator[set[str]]:
    """A pod of 8 on each GPU of ``four``, 7 free beside each, and a node with 12 free; yields the pods' UIDs."""
    await seen.create(gpu_pod("small", 4, node="single"))
    await seen.run_all("small")
    assert (await seen.kubectl("cordon", "single")).code == 0
    assert (await seen.apply(*(deployment(name, 8) for name in APPS))).code == 0
    await seen.pods.until(
        lambda: len(pods_of(seen, *APPS)) == 4 and all(map(is_running, pods_of(seen, *APPS))),
        "all four run",
        tell=lambda: [waits_because(pod) for pod in pods_of(seen, *APPS)],
    )
    await seen.settled()
    assert {node_of(pod) for pod in pods_of(seen, *APPS)} == {"four"}
    assert len({share["uuid"] for pod in pods_of(seen, *APPS) for share in record_of(pod)}) == 4
    assert (await seen.kubectl("uncordon", "single")).code == 0
    try:
        yield {pod["metadata"]["uid"] for pod in pods_of(seen, *APPS)}
    finally:
        await seen.kubectl("delete", "deployment", *APPS, "--ignore-not-found", "--wait=false")


async def waits(seen: World, name: str) -> None:
    await seen.pods.until(
        lambda: "largest free: 7 GiB" in waits_because(seen.pod(name)),
        f"{name} waits",
        tell=lambda: waits_because(seen.pod(name)),
    )


async def all_settled(seen: World) -> None:
    await seen.pods.until(
        lambda: len(pods_of(seen, *APPS)) == 4 and all(map(is_running, pods_of(seen, *APPS))),
        "what moved runs again",
        tell=lambda: [(node_of(pod), waits_because(pod)) for pod in pods_of(seen, *APPS)],
    )


async def test_nothing_moves_until_it_is_asked_for_and_then_the_one_that_waited_runs(seen: World) -> None:
    async with fragmented(seen) as before:
        await seen.create(gpu_pod("wide", 14))
        await waits(seen, "wide")
        report = await seen.kubectl("inspect", "cgpu", "--fragmentation")
        assert "1 would fit after moves" in report.out
        document = json.loads((await seen.kubectl("inspect", "cgpu", "--fragmentation", "-o", "json")).out)
        assert faults(document) == []
        assert [(one["name"], one["fits"]) for one in document["waiting"]] == [("wide", "once moved")]
        assert {pod["metadata"]["uid"] for pod in pods_of(seen, *APPS)} == before
        async with seen.opted_in(*OPTIONS):
            # Any event of the pod has kube-scheduler ask again; by itself it does within five minutes.
            await seen.kubectl("annotate", "pod", "wide", "asked=again")
            await seen.run_all("wide")
            await all_settled(seen)
        apart = [pod for pod in pods_of(seen, *APPS) if pod["metadata"]["uid"] not in before]
        assert [node_of(pod) for pod in apart] == ["single"]
        assert node_of(seen.pod("wide")) == "four"
        await seen.event("wide", "DefragmentationSucceeded", "of four")
        moved = next(
            one for one in seen.events.items.values() if one.get("reason") == "EvictedForDefragmentation"
        )
        assert "default/wide" in moved["note"]
        assert "kept on node single" in moved["note"]


async def test_a_scheduler_killed_while_pods_move_leaves_no_pod_without_a_node(seen: World) -> None:
    async with fragmented(seen) as before, seen.opted_in(*OPTIONS):
        await seen.create(gpu_pod("wide", 14))
        await seen.pods.until(
            lambda: (
                any(uid not in {pod["metadata"]["uid"] for pod in pods_of(seen, *APPS)} for uid in before)
                or any(pod["metadata"].get("deletionTimestamp") for pod in pods_of(seen, *APPS))
            ),
            "one is on its way",
        )
        seen.cluster.kill("extender")
        await seen.run_all("wide")
        await all_settled(seen)
