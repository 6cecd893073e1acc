"""One pod's way through the node agent: the scheduler's allocation becomes the container's environment."""

import pytest

from gpushare.api import names
from tests.integration.nodeagent.cluster_objects import container, pod
from tests.integration.nodeagent.conftest import World
from tests.integration.nodeagent.scripted_kubelet import AdmissionFailed
from tests.integration.nodeagent.scripted_nvml import gpu


async def test_a_share_node_advertises_the_sum_of_its_gpus(world: World) -> None:
    await world.start(mode="share")
    assert world.kubelet.capacity(names.GPU_MEM) == 30
    assert world.kubelet.capacity(names.GPU_CORE) is None
    await world.changes.until(lambda: world.api.capacity("n1").get(names.GPU_COUNT) == "2")
    assert names.ANN_DEVICES in world.api.annotations("nodes", "n1")


async def test_a_core_mem_node_advertises_a_hundred_percent_per_gpu(world: World) -> None:
    world.nvml.gpus = [gpu(index) for index in range(4)]
    await world.start(mode="core_mem")
    assert (world.kubelet.capacity(names.GPU_MEM), world.kubelet.capacity(names.GPU_CORE)) == (60, 400)


async def test_a_container_reads_its_share_in_its_environment(world: World) -> None:
    world.nvml.gpus = [gpu(0, 16384)]
    await world.start(mode="share")
    admitted = await world.run_pod("a", 4, on=0)
    assert admitted.envs["c"] == {
        "NVIDIA_VISIBLE_DEVICES": gpu(0).uuid,
        "ALIYUN_COM_GPU_MEM_IDX": "0",
        "ALIYUN_COM_GPU_MEM_POD": "4",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "4",
        "ALIYUN_COM_GPU_MEM_DEV": "16",
        "GPUSHARE_MEM_LIMIT_MIB": "4096",
    }


async def test_two_of_fifteen_units_on_16160_mib_are_2154_mib_with_30_percent(world: World) -> None:
    world.nvml.gpus = [gpu(0, 16160)]
    await world.start(mode="core_mem")
    envs = (await world.run_pod("a", 2, on=0, core=30)).envs["c"]
    assert (envs[names.ENV_MEM_LIMIT], envs[names.ENV_CORE_PERCENT]) == ("2154", "30")


async def test_a_served_pod_is_marked_assigned_in_both_generations(world: World) -> None:
    await world.start()
    await world.run_pod("a", 3, on=1)
    await world.until_assigned("a")
    assert world.recorded("a").gpus[0].index == 1
    assert world.api.reported("GPUAllocationReconciled") == []


async def test_a_pod_that_the_informer_has_not_seen_is_found_by_a_live_list(world: World) -> None:
    await world.start()
    world.api.watch_held = True
    admitted = await world.run_pod("late", 3, on=1)
    assert admitted.envs["c"][names.ENV_MEM_INDEX] == "1"


async def test_a_pod_not_placed_by_our_scheduler_is_refused_with_the_reason(world: World) -> None:
    await world.start()
    made = world.bind("foreign", container("c", 3), on=None)
    with pytest.raises(AdmissionFailed, match=r"default/foreign: set spec.schedulerName to ack-co-scheduler"):
        await world.kubelet.admit(made)
    await world.changes.until(lambda: world.api.reported("FailedGPUAllocation"))
    assert world.api.reported("FailedGPUAllocation")[0]["regarding"]["name"] == "foreign"


async def test_an_unreachable_api_server_does_not_delay_a_known_pod(world: World) -> None:
    await world.start()
    made = world.bind("known", container("c", 3), on=0)
    # Known once a refusal of another amount shows that the informer has passed it.
    with pytest.raises(AdmissionFailed):
        await world.kubelet.admit(pod("x", container("c", 9)))
    world.api.refusing = True
    world.changes.notify()
    admitted = await world.kubelet.admit(made)
    assert admitted.envs["c"][names.ENV_MEM_INDEX] == "0"
    world.api.refusing = False
    await world.until_assigned("known")


async def test_several_gpu_containers_of_a_pod_are_on_one_gpu(world: World) -> None:
    await world.start()
    world.bind("single", container("c", 3), on=0)
    made = world.bind("pair", container("a", 3), container("b", 4), on=1)
    admitted = await world.kubelet.admit(made)
    assert {envs[names.ENV_MEM_INDEX] for envs in admitted.envs.values()} == {"1"}
    assert admitted.envs["b"][names.ENV_MEM_POD] == "7"
    await world.until_assigned("pair")


async def test_an_app_container_reuses_its_init_containers_devices(world: World) -> None:
    await world.start()
    made = world.bind("a", container("app", 10), on=1, init=(container("init", 8),))
    admitted = await world.kubelet.admit(made)
    mine = {name: set(devices[names.GPU_MEM]) for name, devices in admitted.devices.items()}
    assert mine["init"] < mine["app"]
    assert admitted.envs["app"][names.ENV_MEM_INDEX] == "1"
    await world.until_assigned("a")


async def test_a_stateful_sets_pod_comes_back_under_the_same_name(world: World) -> None:
    await world.start()
    for on in (0, 1, 0):
        admitted = await world.run_pod("s-0", 3, on=on)
        assert admitted.envs["c"][names.ENV_MEM_INDEX] == str(on)
        await world.until_assigned("s-0")
        world.end_pod("s-0")
