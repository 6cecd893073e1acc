"""MIG instances in the playground: each is allocated like a GPU, on nodes with and without isolation; nodes
that allocate whole GPUs exclude them.
"""

import pytest

from gpushare.api import names
from tests.integration.whole.cluster import record_of, waits_because
from tests.integration.whole.world import World, gpu_pod, shared_node

pytestmark = pytest.mark.asyncio(loop_scope="session")

#: The first of two A100 80GB has the instances 2g.20gb at memory slice 0, 1g.10gb at 2 and 3g.40gb at 4.
NODES = (
    shared_node("shared", "mig"),
    shared_node("held", "mig", "cgpu"),
    shared_node("whole", "mig", "topology"),
)
ISOLATED = True
#: Units of 1 GiB and MiB of each GPU and instance by its index.
SIZES = {1: (80, 81920), 16: (19, 19968), 18: (9, 9728), 20: (39, 40192)}


async def test_an_instance_is_a_gpu_with_its_own_memory(cluster: World) -> None:
    for node in ("shared", "held"):
        await cluster.offers(node, sum(units for units, _ in SIZES.values()))
        await cluster.offers(node, 1, names.GPU_COUNT)
    node = next(node for node in (await cluster.inspected())["nodes"] if node["name"] == "held")
    memory = {gpu["index"]: gpu["memory"] for gpu in node["gpus"]}
    assert {index: (one["totalUnits"], one["totalMiB"]) for index, one in memory.items()} == SIZES
    assert [gpu.get("parent") for gpu in node["gpus"]] == [None, 0, 0, 0]


async def test_pods_fill_instances_and_are_limited_to_their_share_of_one(cluster: World) -> None:
    await cluster.create(gpu_pod("small", 9, node="held"), gpu_pod("part", 10, node="held"))
    await cluster.run_all("small", "part")
    (share,) = record_of(cluster.pod("small"))
    assert (share["index"], share["units"], share["of"], share["mib"]) == (18, 9, 9, 9728)
    (share,) = record_of(cluster.pod("part"))
    assert (share["index"], share["of"]) == (16, 19)
    table = (await cluster.kubectl("exec", "part", "--", "nvidia-smi")).out
    assert f"/ {share['mib']:5}MiB" in table
    assert "9728MiB" not in table
    listed = (await cluster.kubectl("exec", "part", "--", "nvidia-smi", "-L")).out
    assert "MIG 2g.20gb" in listed
    assert share["uuid"] in listed
    assert listed.count("MIG-") == 1
    shown = (await cluster.kubectl("inspect", "cgpu", "-d", "held")).out
    assert "GPU0/0(Allocated)  GPU0/2(Allocated)  GPU0/4(Allocated)  GPU1(Allocated)" in shown
    await cluster.delete_all()


async def test_a_pod_for_two_gpus_gets_no_instance(cluster: World) -> None:
    await cluster.create(gpu_pod("two", 4, node="shared", labels={names.LABEL_POD_GPU_COUNT: "2"}))
    await cluster.pods.until(
        lambda: "requests 2 GPUs, but the node has 1" in waits_because(cluster.pod("two")),
        "it waits",
        detail=lambda: waits_because(cluster.pod("two")),
    )
    await cluster.delete_all()


async def test_only_undivided_gpus_are_allocated_whole(cluster: World) -> None:
    await cluster.offers("whole", 1, names.GPU_WHOLE)
    await cluster.create(gpu_pod("all", None, node="whole", limits={names.GPU_WHOLE: 1}))
    await cluster.run_all("all")
    assert [share["index"] for share in record_of(cluster.pod("all"))] == [1]
    await cluster.delete_all()
