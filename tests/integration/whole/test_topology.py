"""Whole GPUs and shares of several, on nodes whose GPUs are not all equally near each other."""

import json

import pytest

from gpushare.api import names
from gpushare_playground import gpus
from gpushare_playground.cluster.embedded import EmbeddedControl
from tests.integration.whole.seen import Json, annotations_of, is_running, node_of, record_of, waits_because
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


def indices(seen: World, name: str) -> set[int]:
    """The GPUs that the pod's record names."""
    return {share["index"] for share in record_of(seen.pod(name))}


async def has(seen: World, name: str) -> set[int]:
    """The GPUs that the kubelet says that the pod has, by index."""
    node = node_of(seen.pod(name))
    ids = (await seen.devices(node, names.GPU_WHOLE))[f"default/{name}", "main"]
    uuids = [gpu.uuid for gpu in gpus.preset({"isles": "two-islands", "four": "core-mem-4"}[node], node).gpus]
    return {
        at
        for at, uuid in enumerate(uuids)
        if any(uuid.startswith(f"GPU-{one.partition('-')[0]}") for one in ids)
    }


async def runs(seen: World, *pods: Json) -> None:
    """Create the pods one after the other, each once the one before it runs."""
    for pod in pods:
        await seen.create(pod)
        await seen.run_all(pod["metadata"]["name"])


async def test_pods_of_two_and_four_gpus_lie_on_islands(seen: World) -> None:
    await runs(seen, whole("two", 2, "isles"), whole("all", 4, "isles"), whole("too", 2, "isles"))
    assert indices(seen, "two") == {0, 1}
    assert indices(seen, "all") == RIGHT
    assert indices(seen, "too") == {2, 3}
    for name in ("two", "all", "too"):
        assert await has(seen, name) == indices(seen, name)
        shares = record_of(seen.pod(name))
        assert all(share["units"] == share["of"] == 80 and share["mib"] == 81920 for share in shares)
        assert names.ANN_MEM_INDEX not in annotations_of(seen.pod(name))
        assert seen.pod(name)["spec"]["schedulerName"] == names.SCHEDULER_NAME
    await seen.create(whole("waits", 1, "isles"))
    await seen.pods.until(
        lambda: "needs a GPU that nothing uses" in waits_because(seen.pod("waits")), "it waits"
    )
    await seen.delete("all")
    await seen.run_all("waits")
    assert indices(seen, "waits") <= RIGHT

    if isinstance(seen.cluster.control, EmbeddedControl):  # a real API server passes nothing on to loopback

        async def use_is_known() -> Json | None:
            listed: Json = json.loads((await seen.kubectl("inspect", "cgpu", "--pods", "-o", "json")).out)
            return None if listed["warnings"] else listed

        listed = await until(use_is_known, "the agents have looked")
        assert {one["name"]: one["usedMiB"] for one in listed["pods"]} == {"two": 0, "too": 0, "waits": 0}
    # Whole GPUs are no GPU memory: the table shows the node that shares it.
    assert [node["name"] for node in (await seen.inspected())["nodes"]] == ["shared"]
    metrics = await seen.metrics()
    assert metrics["allocated_pods"] == 3
    assert metrics["memory_allocated_bytes"] == 5 * 81920 << 20


async def test_pods_of_another_scheduler_get_an_island_and_a_record_too(seen: World) -> None:
    await runs(seen, whole("ours", 2, "isles"))
    theirs = whole("theirs", 4)
    theirs["spec"]["schedulerName"] = "another"
    await seen.create(theirs)
    await seen.bind_by_hand("theirs", "isles")
    await seen.run_all("theirs")
    await seen.pods.until(
        lambda: indices(seen, "theirs"), "the agent has recorded it", tell=lambda: str(seen.pod("theirs"))
    )
    assert indices(seen, "theirs") == RIGHT == await has(seen, "theirs")
    await runs(seen, whole("last", 2, "isles"))
    assert indices(seen, "last") == {2, 3}


async def test_parts_that_are_killed_lose_nothing(seen: World) -> None:
    await runs(seen, whole("before", 4, "isles"))
    for part in ("extender", "node-agent isles", "kubelet isles"):
        seen.cluster.kill(part)
    await seen.create(whole("after", 4, "isles"))
    await seen.run_all("after")
    assert is_running(seen.pod("before"))
    assert {frozenset(indices(seen, name)) for name in ("before", "after")} == {
        frozenset(LEFT),
        frozenset(RIGHT),
    }
    for name in ("before", "after"):
        assert await has(seen, name) == indices(seen, name)


async def test_the_mode_changes_under_a_pod_with_whole_gpus(seen: World) -> None:
    await runs(seen, whole("stays", 2, "four"))
    assert indices(seen, "stays") == {0, 3}  # the two that have two links
    await seen.label("four", {names.LABEL_MODE: "share"})
    await seen.offers("four", 30)  # of 60: two GPUs are held whole
    await runs(seen, *(gpu_pod(f"share-{number}", 15, node="four") for number in range(2)))
    assert [indices(seen, f"share-{number}") for number in range(2)] == [{1}, {2}]
    node = next(one for one in (await seen.inspected())["nodes"] if one["name"] == "four")
    assert [gpu["memory"]["allocatedMiB"] for gpu in node["gpus"]] == [16160] * 4, json.dumps(node)
    await seen.delete("share-0")
    await seen.label("four", {names.LABEL_MODE: "topology"})
    await seen.pods.until(lambda: "default/share-0" not in seen.pods.items, "it is gone")
    await runs(seen, whole("one", 1, "four"))
    assert indices(seen, "one") == {1}
    assert is_running(seen.pod("stays"))
    assert indices(seen, "stays") == {0, 3}
