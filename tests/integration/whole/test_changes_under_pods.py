"""Memory unit, GPU health and node mode change while pods hold GPUs; every figure stays right."""

from dataclasses import replace

import pytest

from gpushare.api import names
from gpushare.api.quantity import MemoryUnit
from gpushare_playground import gpus
from tests.integration.whole.cluster import Json, held_mib, is_running, node_of, record_of, waits_because
from tests.integration.whole.world import World, gpu_pod, shared_node, until

pytestmark = pytest.mark.asyncio(loop_scope="session")

NODES = (shared_node("four", "core-mem-4"), shared_node("single", "v100-16384"))
V100_OLD_MIB, V100_MIB = 16160, 16384
_TRIES = 4


def granted(total_mib: int, units: int, unit_mib: int) -> int:
    """A request's memory by the documentation."""
    return total_mib * units // (total_mib // unit_mib)


async def runs(cluster: World, *pods: Json) -> None:
    """Create pods and wait until all of them run."""
    wanted = [pod["metadata"]["name"] for pod in pods]
    await cluster.create(*pods)
    await cluster.pods.until(
        lambda: all(is_running(cluster.pod(name)) for name in wanted),
        f"{wanted} run",
        detail=lambda: {name: (waits_because(cluster.pod(name)), cluster.events_of(name)) for name in wanted},
    )
    await cluster.settled(*wanted)


async def runs_on(cluster: World, name: str, units: int, index: int, *, node: str) -> None:
    """The pod gets that GPU, at the latest once the scheduler has processed the last change of the node."""
    found: list[list[int]] = []
    while len(found) < _TRIES:
        await cluster.create(gpu_pod(name, units, node=node))
        await cluster.run_all(name)
        found.append([share["index"] for share in record_of(cluster.pod(name))])
        if found[-1] == [index]:
            return
        await cluster.delete(name)
        await cluster.pods.until(lambda: f"default/{name}" not in cluster.pods.items, f"{name} is gone")
    pytest.fail(f"{name} came to GPUs {found}, not to {index}")


async def waits(cluster: World, pod: Json, *parts: str) -> str:
    """Create a pod and wait until its condition contains all of ``words``."""
    name = pod["metadata"]["name"]
    await cluster.create(pod)
    return await reason(cluster, name, *parts)


async def reason(cluster: World, name: str, *parts: str) -> str:
    def matching() -> str:
        why = waits_because(cluster.pod(name))
        return why if all(part in why for part in parts) else ""

    return await cluster.pods.until(
        matching, f"{name} waits and says {parts}", detail=lambda: waits_because(cluster.pod(name))
    )


async def gone(cluster: World, *pod_names: str) -> None:
    await cluster.delete(*pod_names)
    await cluster.pods.until(
        lambda: not any(f"default/{name}" in cluster.pods.items for name in pod_names),
        f"{pod_names} are gone",
    )


async def figures_are(cluster: World, mib_by_pod: dict[str, int], reserved_mib: int = 0) -> None:
    """Annotations, the extender's metrics and ``kubectl inspect`` all show that these pods hold these MiB.

    ``kept_mib``: memory of all GPUs that is not offered.
    """
    shown: dict[str, object] = {}

    async def agree() -> bool:
        held = held_mib(cluster.pods.items.values())
        records = {
            pod["metadata"]["name"]: sum(one["mib"] for one in record_of(pod))
            for pod in cluster.pods.items.values()
            if node_of(pod)
        }
        metrics = await cluster.metrics()
        inspected = await cluster.inspected()
        gpu_mib = {
            gpu["uuid"]: gpu["memory"]["allocatedMiB"] for node in inspected["nodes"] for gpu in node["gpus"]
        }
        pod_mib = {
            pod["name"]: sum(share["MiB"] for share in pod["shares"])
            for node in inspected["nodes"]
            for pod in node["pods"]
        }
        shown.update(records=records, metrics=metrics, inspected=inspected)
        return (
            records == pod_mib == mib_by_pod
            and gpu_mib == {uuid: held.get(uuid, 0) for uuid in cluster.total_mib}
            and metrics.get("memory_allocated_bytes") == sum(mib_by_pod.values()) << 20
            and metrics.get("memory_capacity_bytes") == (sum(cluster.total_mib.values()) - reserved_mib) << 20
            and metrics.get("allocated_pods") == len(mib_by_pod)
            and metrics.get("reservations") == 0
        )

    await until(agree, f"all figures are those of {mib_by_pod}", detail=lambda: shown)


async def test_the_unit_changes_and_changes_back_under_pods_and_every_figure_is_right(
    cluster: World,
) -> None:
    gib3, gib4 = granted(V100_OLD_MIB, 3, 1024), granted(V100_MIB, 4, 1024)
    assert (gib3, gib4) == (3232, 4096)
    await runs(cluster, gpu_pod("three", 3, node="four"), gpu_pod("four", 4, node="single"))
    await cluster.create(gpu_pod("ends", 5, "sleep", "0.2", node="four"))
    await cluster.pods.until(
        lambda: cluster.pod("ends").get("status", {}).get("phase") == "Succeeded", "it ends"
    )
    await gone(cluster, "ends")
    await figures_are(cluster, {"three": gib3, "four": gib4})

    # A pod is created while no agent runs, and one is deleted: neither is lost.
    await cluster.create(gpu_pod("meanwhile", 2, node="four"))
    await cluster.playground.set_unit(MemoryUnit.MIB_128)
    await cluster.offers("four", 4 * (V100_OLD_MIB // 128))
    await cluster.offers("single", V100_MIB // 128)
    await gone(cluster, "meanwhile")
    await runs(cluster, gpu_pod("small", 17, node="four"), gpu_pod("one", 1, node="single"))
    held = {"three": gib3, "four": gib4, "small": granted(V100_OLD_MIB, 17, 128), "one": 128}
    await figures_are(cluster, held)
    await gone(cluster, "three")
    del held["three"]
    await figures_are(cluster, held)
    # Free memory is counted in MiB, not in requests of two units: 16384 - 4096 - 128 are 95 units.
    await waits(cluster, gpu_pod("too-much", 96, node="single"), "no single GPU has 12 GiB free")
    await gone(cluster, "too-much")
    await runs(cluster, gpu_pod("just-fits", 95, node="single"))
    held["just-fits"] = 95 * 128
    await figures_are(cluster, held)
    await gone(cluster, "just-fits")
    del held["just-fits"]

    await cluster.playground.set_unit(MemoryUnit.GIB)
    await cluster.offers("four", 60)
    await cluster.offers("single", 16)
    await runs(cluster, gpu_pod("again", 2, node="four"))
    held["again"] = granted(V100_OLD_MIB, 2, 1024)
    await figures_are(cluster, held)
    await gone(cluster, "small", "one", "four")
    await figures_are(cluster, {"again": held["again"]})
    await runs(cluster, gpu_pod("whole", 16, node="single"))
    await figures_are(cluster, {"again": held["again"], "whole": V100_MIB})


async def test_a_failed_gpu_gets_no_new_pods_and_keeps_its_own_until_it_recovers(
    cluster: World,
) -> None:
    file = cluster.playground.gpu_file("four")
    good = cluster.playground.gpus_of("four")
    await runs(cluster, gpu_pod("stays", 3, node="four"))
    [share] = record_of(cluster.pod("stays"))
    number = share["index"]
    await runs(cluster, *(gpu_pod(f"beside-{other}", 13, node="four") for other in range(3)))

    broken = [replace(gpu, fault="lost") if index == number else gpu for index, gpu in enumerate(good.gpus)]
    gpus.write(file, replace(good, gpus=tuple(broken)))
    await cluster.offers("four", 45)
    await cluster.event("four", "GPUUnhealthy", f"GPU {number}", "out of service")
    await cluster.event("stays", "PodGPUUnhealthy", f"GPU {number}", "which is allocated to this pod")
    why = await waits(cluster, gpu_pod("new", 3, node="four"), "no single GPU has 3 GiB free")
    assert f"GPU {number} is unhealthy" in why, why
    assert is_running(cluster.pod("stays"))
    assert node_of(cluster.pod("new")) == ""

    gpus.write(file, good)
    await cluster.offers("four", 60)
    await cluster.event("four", "GPURecovered", f"GPU {number}")
    await cluster.pods.until(lambda: is_running(cluster.pod("new")), "the pod that waited is placed")
    assert record_of(cluster.pod("new"))[0]["index"] == number
    assert is_running(cluster.pod("stays"))
    assert record_of(cluster.pod("stays")) == [share]


async def test_a_node_is_relabelled_and_labelled_back_with_a_pod_running(cluster: World) -> None:
    await runs(cluster, gpu_pod("stays", 4, node="single"))
    record, devices = record_of(cluster.pod("stays")), await cluster.devices("single")
    # Where it is held to its share, the driver's reserve of 224 MiB is not offered.
    for mode, offered in (("cgpu", 15), ("default", 0), ("share", 16)):
        await cluster.label("single", {names.LABEL_MODE: mode})
        await cluster.offers("single", offered)
        assert is_running(cluster.pod("stays"))
        assert record_of(cluster.pod("stays")) == record
        assert await cluster.devices("single") == devices
        if mode == "default":
            await waits(cluster, gpu_pod("refused", 1, node="single"), "0/2 nodes are available")
            await gone(cluster, "refused")
        else:
            await figures_are(cluster, {"stays": 4096}, reserved_mib=224 if mode == "cgpu" else 0)
    await waits(cluster, gpu_pod("too-much", 13, node="single"), "no single GPU has 13 GiB free")
    await runs(cluster, gpu_pod("fits", 12, node="single"))
    await figures_are(cluster, {"stays": 4096, "fits": 12288})


async def test_placement_changes_under_running_pods_and_new_pods_follow_it(
    cluster: World,
) -> None:
    await runs_on(cluster, "packed", 3, 0, node="four")
    await runs_on(cluster, "beside", 3, 0, node="four")
    await cluster.label("four", {names.LABEL_PLACEMENT: "spread"})
    await runs_on(cluster, "spread", 3, 1, node="four")
    await runs_on(cluster, "farther", 3, 2, node="four")
    # An unknown value keeps new pods away, and frees nothing.
    await cluster.label("four", {names.LABEL_PLACEMENT: "sprad"})
    await cluster.event("four", "InvalidGPULabel", names.LABEL_PLACEMENT, "sprad")
    await waits(cluster, gpu_pod("waits", 3, node="four"), "sprad is unknown; use one of binpack, spread")
    held = dict.fromkeys(("packed", "beside", "spread", "farther"), granted(V100_OLD_MIB, 3, 1024))
    assert all(is_running(cluster.pod(name)) for name in held)
    await cluster.label("four", {names.LABEL_PLACEMENT: None})
    await cluster.pods.until(lambda: is_running(cluster.pod("waits")), "what waited is placed")
    assert [share["index"] for share in record_of(cluster.pod("waits"))] == [0]
    await figures_are(cluster, {**held, "waits": granted(V100_OLD_MIB, 3, 1024)})


async def test_a_node_that_returns_with_another_gpu_offers_all_of_it(
    cluster: World,
) -> None:
    file = cluster.playground.gpu_file("single")
    good, other = cluster.playground.gpus_of("single"), gpus.preset("v100-16384", "another")
    await runs(cluster, gpu_pod("stays", 4, node="single"))
    record = record_of(cluster.pod("stays"))
    assert record[0]["uuid"] == good.gpus[0].uuid

    async def come_back_with(node: gpus.GpuNode) -> None:
        gpus.write(file, node)
        for part in ("kubelet single", "node-agent single"):
            cluster.playground.kill(part)
        await cluster.nodes.until(
            lambda: (
                node.gpus[0].uuid
                in cluster.nodes.items["single"]["metadata"]["annotations"][names.ANN_DEVICES]
            ),
            "the node describes the GPU that it has now",
        )
        await cluster.can_give("single", node.gpus[0].uuid)
        await cluster.offers("single", 16)

    try:
        await come_back_with(other)
        assert is_running(cluster.pod("stays"))
        await runs(cluster, gpu_pod("new", 12, node="single"))
        assert [share["uuid"] for share in record_of(cluster.pod("new"))] == [other.gpus[0].uuid]
        assert record_of(cluster.pod("stays")) == record
        shown = await cluster.kubectl("inspect", "cgpu", "single")
        assert f"holds 4096 MiB of GPU 0 ({record[0]['uuid']}), which node single no longer has" in shown.err
        assert "12/16" in shown.out
        metrics = await cluster.metrics()
        assert (metrics["memory_allocated_bytes"], metrics["allocated_pods"]) == (12288 << 20, 2)
        await gone(cluster, "stays")
        await runs(cluster, gpu_pod("rest", 4, node="single"))
        await waits(cluster, gpu_pod("too-much", 1, node="single"), "no single GPU has 1 GiB free")
        await gone(cluster, "too-much", "new", "rest")
    finally:
        await come_back_with(good)
    await runs(cluster, gpu_pod("whole", 16, node="single"))
    await figures_are(cluster, {"whole": V100_MIB})
