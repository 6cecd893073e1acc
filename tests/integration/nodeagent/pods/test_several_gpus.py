"""Pods with several GPUs, and with whole ones, through the node agent."""

from gpushare.api import names
from tests.integration.nodeagent.cluster_objects import container
from tests.integration.nodeagent.conftest import World
from tests.integration.nodeagent.scripted_nvml import gpu

TWO = {names.LABEL_POD_GPU_COUNT: "2"}
WHOLE = {names.LABEL_POD_PLACEMENT: names.POD_PLACEMENT_WHOLE_DEVICE}


async def start(world: World, *, gpus: int, mode: str = "share") -> None:
    world.nvml.gpus = [gpu(index, 16384) for index in range(gpus)]
    await world.start(mode=mode)


def ids_by_gpu(ids: list[str]) -> list[int]:
    prefixes = [one.rpartition("-")[0] for one in ids]
    return sorted(prefixes.count(one) for one in set(prefixes))


async def test_a_containers_environment_lists_all_its_gpus_and_its_part_of_one(world: World) -> None:
    await start(world, gpus=3)
    admitted = await world.kubelet.admit(world.bind("a", container("c", 8), on=(0, 2), labels=TWO))
    assert admitted.envs["c"] == {
        "NVIDIA_VISIBLE_DEVICES": f"{gpu(0).uuid},{gpu(2).uuid}",
        "ALIYUN_COM_GPU_MEM_IDX": "0,2",
        "ALIYUN_COM_GPU_MEM_POD": "8",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "4",
        "ALIYUN_COM_GPU_MEM_DEV": "16",
        "GPUSHARE_MEM_LIMIT_MIB": "4096",
    }
    assert ids_by_gpu(admitted.devices["c"][names.GPU_MEM]) == [4, 4]
    await world.until_assigned("a")
    annotations = world.api.annotations("pods", "default/a")
    assert annotations[names.ANN_ALLOCATION] == '{"0":{"0":4,"2":4}}'
    assert names.ANN_MEM_INDEX not in annotations


async def test_all_containers_of_a_pod_are_on_its_gpus(world: World) -> None:
    await start(world, gpus=4)
    made = world.bind(
        "a",
        container("first", 4),
        container("second", 2),
        init=(container("i", 8), container("s", 2, restartPolicy="Always")),
        on=(1, 3),
        labels=TWO,
    )
    admitted = await world.kubelet.admit(made)
    assert {envs[names.ENV_MEM_INDEX] for envs in admitted.envs.values()} == {"1,3"}
    assert {name: envs[names.ENV_MEM_CONTAINER] for name, envs in admitted.envs.items()} == {
        "i": "4",
        "s": "1",
        "first": "2",
        "second": "1",
    }
    await world.until_assigned("a")
    assert world.api.reported("GPUAllocationReconciled") == []


async def test_a_whole_gpu_for_fewer_units_is_announced_as_whole(world: World) -> None:
    await start(world, gpus=2)
    admitted = await world.kubelet.admit(world.bind("a", container("c", 3), on=1, labels=WHOLE))
    envs = admitted.envs["c"]
    announced = {
        name: envs[name] for name in (names.ENV_MEM_INDEX, names.ENV_MEM_POD, names.ENV_MEM_CONTAINER)
    }
    assert announced == {names.ENV_MEM_INDEX: "1", names.ENV_MEM_POD: "16", names.ENV_MEM_CONTAINER: "16"}
    assert envs[names.ENV_MEM_LIMIT] == "16384"
    assert len(admitted.devices["c"][names.GPU_MEM]) == 3
    await world.until_assigned("a")
    assert world.recorded("a").units == 16
