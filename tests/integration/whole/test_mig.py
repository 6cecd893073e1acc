"""MIG instances in the playground: each takes pods like a GPU, on nodes with and without isolation; nodes that allocate whole GPUs do without."""

import pytest

from gpushare.api import names
from tests.integration.whole.seen import record_of, waits_because
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


async def test_an_instance_is_a_gpu_with_its_own_memory(seen: World) -> None:
    for node in ("shared", "held"):
        await seen.offers(node, sum(units for units, _ in SIZES.values()))
        assert seen.allocatable(node, names.GPU_COUNT) == "1"
    node = next(node for node in (await seen.inspected())["nodes"] if node["name"] == "held")
    memory = {gpu["index"]: gpu["memory"] for gpu in node["gpus"]}
    assert {index: (one["totalUnits"], one["totalMiB"]) for index, one in memory.items()} == SIZES
    assert [gpu.get("parent") for gpu in node["gpus"]] == [None, 0, 0, 0]


async def test_pods_fill_instances_and_are_held_to_their_share_of_one(seen: World) -> None:
    await seen.create(gpu_pod("small", 9, node="held"), gpu_pod("part", 10, node="held"))
    await seen.run_all("small", "part")
    (share,) = record_of(seen.pod("small"))
    assert (share["index"], share["units"], share["of"], share["mib"]) == (18, 9, 9, 9728)
    (share,) = record_of(seen.pod("part"))
    assert (share["index"], share["of"]) == (16, 19)
    table = (await seen.kubectl("exec", "part", "--", "nvidia-smi")).out
    assert f"/ {share['mib']:5}MiB" in table
    assert "9728MiB" not in table
    listed = (await seen.kubectl("exec", "part", "--", "nvidia-smi", "-L")).out
    assert "MIG 2g.20gb" in listed
    assert share["uuid"] in listed
    assert listed.count("MIG-") == 1
    shown = (await seen.kubectl("inspect", "cgpu", "-d", "held")).out
    assert "GPU0/0(Allocated)  GPU0/2(Allocated)  GPU0/4(Allocated)  GPU1(Allocated)" in shown
    await seen.delete_all()


async def test_a_pod_for_two_gpus_gets_no_instance(seen: World) -> None:
    await seen.create(gpu_pod("two", 4, node="shared", labels={names.LABEL_POD_GPU_COUNT: "2"}))
    await seen.pods.until(
        lambda: "asks for 2 GPUs, the node has 1" in waits_because(seen.pod("two")),
        "it waits",
        tell=lambda: waits_because(seen.pod("two")),
    )
    await seen.delete_all()


async def test_whole_gpus_are_those_that_are_not_divided(seen: World) -> None:
    await seen.offers("whole", 1, names.GPU_WHOLE)
    await seen.create(gpu_pod("all", None, node="whole", limits={names.GPU_WHOLE: 1}))
    await seen.run_all("all")
    assert [share["index"] for share in record_of(seen.pod("all"))] == [1]
    await seen.delete_all()
