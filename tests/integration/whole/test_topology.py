"""Whole GPUs and shares of several, on nodes whose GPUs are not all equally near each other."""

import json

import pytest

from gpushare.api import names
from gpushare_playground import gpus
from gpushare_playground.cluster.embedded import EmbeddedControl
from tests.integration.whole.cluster import (
    Json,
    annotations_of,
    is_running,
    node_of,
    record_of,
    waits_because,
)
from tests.integration.whole.world import World, gpu_pod, shared_node, until

pytestmark = pytest.mark.asyncio(loop_scope="session")

#: Two boards of four, linked with 100 GB/s within a board; four GPUs with 25 or 50 GB/s between each two.
NODES = (
    shared_node("isles", "two-islands", "topology"),
    shared_node("four", "core-mem-4", "topology"),
    shared_node("shared", "two-islands"),
)
LEFT, RIGHT = {0, 1, 2, 3}, {4, 5, 6, 7}


def whole(name: str, count: int, node: str = "") -> Json:
    return gpu_pod(name, None, node=node, limits={names.GPU_WHOLE: count})


def indices(cluster: World, name: str) -> set[int]:
    """The GPUs in the pod's record."""
    return {share["index"] for share in record_of(cluster.pod(name))}


async def has(cluster: World, name: str) -> set[int]:
    """The pod's GPUs by the kubelet, by index."""
    node = node_of(cluster.pod(name))
    ids = (await cluster.devices(node, names.GPU_WHOLE))[f"default/{name}", "main"]
    uuids = [gpu.uuid for gpu in gpus.preset({"isles": "two-islands", "four": "core-mem-4"}[node], node).gpus]
    return {
        at
        for at, uuid in enumerate(uuids)
        if any(uuid.startswith(f"GPU-{one.partition('-')[0]}") for one in ids)
    }


async def runs(cluster: World, *pods: Json) -> None:
    """Create the pods one after the other, each once the one before it runs."""
    for pod in pods:
        await cluster.create(pod)
        await cluster.run_all(pod["metadata"]["name"])


async def test_pods_of_two_and_four_gpus_are_on_islands(cluster: World) -> None:
    await runs(cluster, whole("two", 2, "isles"), whole("all", 4, "isles"), whole("too", 2, "isles"))
    assert indices(cluster, "two") == {0, 1}
    assert indices(cluster, "all") == RIGHT
    assert indices(cluster, "too") == {2, 3}
    for name in ("two", "all", "too"):
        assert await has(cluster, name) == indices(cluster, name)
        shares = record_of(cluster.pod(name))
        assert all(share["units"] == share["of"] == 80 and share["mib"] == 81920 for share in shares)
        assert names.ANN_MEM_INDEX not in annotations_of(cluster.pod(name))
        assert cluster.pod(name)["spec"]["schedulerName"] == names.SCHEDULER_NAME
    await cluster.create(whole("waits", 1, "isles"))
    await cluster.pods.until(
        lambda: "needs a GPU that nothing uses" in waits_because(cluster.pod("waits")), "it waits"
    )
    await cluster.delete("all")
    await cluster.run_all("waits")
    assert indices(cluster, "waits") <= RIGHT

    if isinstance(
        cluster.playground.control, EmbeddedControl
    ):  # a real API server forwards nothing to loopback

        async def use_is_known() -> Json | None:
            listed: Json = json.loads((await cluster.kubectl("inspect", "cgpu", "--pods", "-o", "json")).out)
            return None if listed["warnings"] else listed

        listed = await until(use_is_known, "the agents have looked")
        assert {one["name"]: one["usedMiB"] for one in listed["pods"]} == {"two": 0, "too": 0, "waits": 0}
    # Whole GPUs are no GPU memory: the table shows the node that shares it.
    assert [node["name"] for node in (await cluster.inspected())["nodes"]] == ["shared"]
    metrics = await cluster.metrics()
    assert metrics["allocated_pods"] == 3
    assert metrics["memory_allocated_bytes"] == 5 * 81920 << 20


async def test_pods_of_another_scheduler_get_an_island_and_a_record_too(cluster: World) -> None:
    await runs(cluster, whole("ours", 2, "isles"))
    theirs = whole("theirs", 4)
    theirs["spec"]["schedulerName"] = "another"
    await cluster.create(theirs)
    await cluster.bind_by_hand("theirs", "isles")
    await cluster.run_all("theirs")
    await cluster.pods.until(
        lambda: indices(cluster, "theirs"),
        "the agent has recorded it",
        detail=lambda: str(cluster.pod("theirs")),
    )
    assert indices(cluster, "theirs") == RIGHT == await has(cluster, "theirs")
    await runs(cluster, whole("last", 2, "isles"))
    assert indices(cluster, "last") == {2, 3}


async def test_killed_components_lose_nothing(cluster: World) -> None:
    await runs(cluster, whole("before", 4, "isles"))
    for part in ("extender", "node-agent isles", "kubelet isles"):
        cluster.playground.kill(part)
    await cluster.create(whole("after", 4, "isles"))
    await cluster.run_all("after")
    assert is_running(cluster.pod("before"))
    assert {frozenset(indices(cluster, name)) for name in ("before", "after")} == {
        frozenset(LEFT),
        frozenset(RIGHT),
    }
    for name in ("before", "after"):
        assert await has(cluster, name) == indices(cluster, name)


async def test_the_mode_changes_under_a_pod_with_whole_gpus(cluster: World) -> None:
    await runs(cluster, whole("stays", 2, "four"))
    assert indices(cluster, "stays") == {0, 3}  # the two that have two links
    await cluster.label("four", {names.LABEL_MODE: "share"})
    await cluster.offers("four", 30)  # of 60: two GPUs are held whole
    await runs(cluster, *(gpu_pod(f"share-{number}", 15, node="four") for number in range(2)))
    assert [indices(cluster, f"share-{number}") for number in range(2)] == [{1}, {2}]
    node = next(one for one in (await cluster.inspected())["nodes"] if one["name"] == "four")
    assert [gpu["memory"]["allocatedMiB"] for gpu in node["gpus"]] == [16160] * 4, json.dumps(node)
    await cluster.delete("share-0")
    await cluster.label("four", {names.LABEL_MODE: "topology"})
    await cluster.pods.until(lambda: "default/share-0" not in cluster.pods.items, "it is gone")
    await runs(cluster, whole("one", 1, "four"))
    assert indices(cluster, "one") == {1}
    assert is_running(cluster.pod("stays"))
    assert indices(cluster, "stays") == {0, 3}
