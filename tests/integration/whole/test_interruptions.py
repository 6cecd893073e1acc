"""The kubelet is killed, the API server stops answering, the kubelet admits identical pods in another order."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator

import pytest

from gpushare.api import names
from tests.integration.whole.cluster import Json, held_mib, is_running, node_of, record_of, waits_because
from tests.integration.whole.world import World, gpu_pod, shared_node, until

pytestmark = pytest.mark.asyncio(loop_scope="session")

NODES = (
    shared_node("four", "core-mem-4", "share", (names.LABEL_PLACEMENT, "spread")),
    shared_node("single", "v100-16384"),
    shared_node("both", "core-mem-4", "core_mem"),
)


async def all_run(cluster: World, wanted: list[str], within_s: float = 60.0) -> None:
    await cluster.pods.until(
        lambda: all(is_running(cluster.pod(name)) for name in wanted),
        f"{wanted} run",
        within_s,
        detail=lambda: {
            name: (waits_because(cluster.pod(name)), cluster.events_of(name))
            for name in wanted
            if not is_running(cluster.pod(name))
        },
    )


async def records_follow_the_kubelet(cluster: World, node: str) -> dict[str, int]:
    """Wait until every pod's annotation has the GPU and the amount that the kubelet lists; returns the GPU
    index by pod.
    """
    shown: list[str] = []

    async def agree() -> bool:
        devices = await cluster.devices(node)
        shown[:] = []
        for key, pod in cluster.pods.items.items():
            if node_of(pod) != node:
                continue
            ids = devices.get((key, "main"), frozenset())
            has = {(len(ids), one.partition("-")[0]) for one in ids}
            recorded = {(one["units"], one["uuid"].removeprefix("GPU-")[:8]) for one in record_of(pod)}
            if has != recorded:
                shown.append(f"{key}: has {sorted(ids)}, its record says {recorded}")
        return not shown

    await until(agree, "annotations and pod resources agree", detail=lambda: shown)
    return {
        key: int(pod["metadata"]["annotations"][names.ANN_MEM_INDEX])
        for key, pod in cluster.pods.items.items()
        if node_of(pod) == node
    }


@contextlib.asynccontextmanager
async def stopped(cluster: World, part: str) -> AsyncIterator[None]:
    """The part is stopped (SIGSTOP) during the block."""
    pid = cluster.playground.parts[part].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


async def test_identical_pods_admitted_in_another_order_end_with_correct_records(
    cluster: World,
) -> None:
    # While the node's kubelet is stopped, 16 identical pods are bound, four to each GPU. After its
    # restart it begins with the oldest by creation (whole seconds) in no certain order, which is not the
    # order of the decisions. (A first pod makes the restarted kubelet wait for its plugin: with pods that
    # have devices it does.)
    await cluster.create(gpu_pod("first", 2, node="four"))
    await all_run(cluster, ["first"])
    wanted = [f"equal-{number:02}" for number in range(16)]
    async with stopped(cluster, "kubelet four"):
        await cluster.create(*(gpu_pod(name, 3, node="four") for name in reversed(wanted)))
        await cluster.pods.until(
            lambda: all(node_of(cluster.pod(name)) for name in wanted),
            "all are bound",
            detail=lambda: [waits_because(cluster.pod(name)) for name in wanted],
        )
        decided = {name: record_of(cluster.pod(name))[0]["index"] for name in wanted}
        assert sorted(decided.values()) == sorted([0, 1, 2, 3] * 4)
        cluster.playground.kill("kubelet four")
    await all_run(cluster, wanted)
    index_of = await records_follow_the_kubelet(cluster, "four")
    assert all(mib <= cluster.total_mib[uuid] for uuid, mib in held_mib(cluster.pods.items.values()).items())
    swapped = [name for name in wanted if index_of[f"default/{name}"] != decided[name]]
    # None, unless the new kubelet's list arrived too late to distinguish them.
    print(f"served on another GPU than decided: {swapped}")
    for name in (*wanted[:3], *swapped[:3]):
        environment = (await cluster.kubectl("exec", name, "--", "env")).out.splitlines()
        assert f"{names.ENV_MEM_INDEX}={index_of[f'default/{name}']}" in environment
    for name in swapped:
        await cluster.event(name, "GPUAllocationReconciled")
    assert not [one for one in cluster.events.items.values() if one.get("reason") == "FailedGPUAllocation"]


async def bound(cluster: World, pod: Json) -> None:
    await cluster.create(pod)
    name = pod["metadata"]["name"]
    await cluster.pods.until(lambda: node_of(cluster.pod(name)), f"{name} is bound")


async def test_pods_with_compute_that_arrive_together_fill_a_node_each_on_one_gpu(cluster: World) -> None:
    # The kubelet requests memory and compute one after the other, in any order; these differ in memory alone.
    core = {names.GPU_CORE: 5}
    wanted = {f"pod-{number}": 11 if number % 2 else 4 for number in range(8)}
    # Decided one after the other, since two small ones on one GPU would leave too little; the kubelet has
    # them all at once.
    for name, units in wanted.items():
        await bound(cluster, gpu_pod(name, units, node="both", limits=core))
    await all_run(cluster, [*wanted])
    index_of = await records_follow_the_kubelet(cluster, "both")
    assert sorted(index_of.values()) == [0, 0, 1, 1, 2, 2, 3, 3]
    memory, compute = await cluster.devices("both"), await cluster.devices("both", names.GPU_CORE)
    for name in wanted:
        gpus_of = [
            {one.partition("-")[0] for one in its[f"default/{name}", "main"]} for its in (memory, compute)
        ]
        assert gpus_of[0] == gpus_of[1]
        assert len(gpus_of[0]) == 1


async def test_containers_outlive_a_killed_kubelet_and_capacity_and_records_are_restored(
    cluster: World,
) -> None:
    await cluster.create(
        gpu_pod("a", 5, node="four"), gpu_pod("b", 5, node="four"), gpu_pod("c", 7, node="single")
    )
    await all_run(cluster, ["a", "b", "c"])
    devices = await cluster.devices("four")
    started = {name: cluster.pod(name)["status"]["containerStatuses"][0] for name in ("a", "b")}
    (plugin,) = (cluster.playground.state / "nodes" / "four" / "device-plugins").glob("gpushare-mem-*.sock")
    first = plugin.stat().st_ctime_ns

    cluster.playground.kill("kubelet four")
    await cluster.create(gpu_pod("meanwhile", 6, node="four"))

    async def registered_again() -> bool:
        with contextlib.suppress(FileNotFoundError):
            return plugin.stat().st_ctime_ns != first
        return False

    await until(registered_again, "the plugin serves on a new socket")
    await all_run(cluster, ["meanwhile"])
    await cluster.offers("four", 60)
    now = await cluster.devices("four")
    assert {holder: ids for holder, ids in now.items() if holder[0] != "default/meanwhile"} == devices
    await records_follow_the_kubelet(cluster, "four")
    for name, status in started.items():
        again = cluster.pod(name)["status"]["containerStatuses"][0]
        assert (again["containerID"], again["restartCount"]) == (status["containerID"], 0)
    log = (cluster.playground.state / "log" / "node-agent-four.log").read_text()
    assert log.count("aliyun.com/gpu-mem is registered with the kubelet") >= 2


async def test_nothing_is_lost_while_the_api_server_does_not_answer(cluster: World) -> None:
    await cluster.create(gpu_pod("fills", 14, node="single"), gpu_pod("runs", 3, node="four"))
    await all_run(cluster, ["fills", "runs"])
    await cluster.create(gpu_pod("waits", 9, node="single"))
    await cluster.pods.until(lambda: "no single GPU has" in waits_because(cluster.pod("waits")), "it waits")
    before = {key: record_of(pod) for key, pod in cluster.pods.items.items()}

    [api_server] = cluster.playground.control.last
    async with stopped(cluster, api_server):
        # Requested while nothing answers; answered once it continues.
        creation = asyncio.create_task(
            cluster.create(*(gpu_pod(f"late-{n}", 2, node="four") for n in range(6)))
        )
        gone = asyncio.create_task(cluster.delete("fills"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3.0):
                await asyncio.wait([creation, gone], return_when=asyncio.FIRST_COMPLETED)
    await asyncio.gather(creation, gone)
    await all_run(cluster, ["waits", "runs", *(f"late-{n}" for n in range(6))])
    assert record_of(cluster.pod("runs")) == before["default/runs"]
    await records_follow_the_kubelet(cluster, "four")
    await records_follow_the_kubelet(cluster, "single")

    async def counted() -> bool:
        figures = await cluster.metrics()
        held = sum(
            one["mib"] for pod in cluster.pods.items.values() if node_of(pod) for one in record_of(pod)
        )
        return (figures.get("memory_allocated_bytes"), figures.get("reservations")) == (held << 20, 0)

    await until(counted, "the extender counts what the pods hold")
