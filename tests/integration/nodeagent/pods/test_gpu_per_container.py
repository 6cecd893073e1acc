"""Pods whose containers have a GPU each (label ``gpushare.dev/gpu-per-container``), through the node agent."""

import pytest

from gpushare.api import names
from tests.integration.nodeagent.cluster_objects import container
from tests.integration.nodeagent.conftest import World
from tests.integration.nodeagent.scripted_nvml import gpu

APART = {names.LABEL_POD_APART: "true"}


async def start(world: World, *, mode: str = "share") -> None:
    world.nvml.gpus = [gpu(index, 16384) for index in range(4)]
    await world.start(mode=mode)


def gpus_of(ids: list[str]) -> set[str]:
    return {one.rpartition("-")[0] for one in ids}


async def test_each_container_gets_its_own_gpu_and_its_own_limits(world: World) -> None:
    await start(world, mode="core_mem")
    containers = (container("first", 10, 30), {"name": "web"}, container("second", 10, 30))
    admitted = await world.kubelet.admit(world.bind("a", *containers, on=(1, 3), labels=APART))
    environment = {name: admitted.envs[name] for name in ("first", "second")}
    assert {name: envs[names.ENV_VISIBLE_DEVICES] for name, envs in environment.items()} == {
        "first": gpu(1).uuid,
        "second": gpu(3).uuid,
    }
    for envs, index in zip(environment.values(), ("1", "3"), strict=True):
        assert envs[names.ENV_MEM_INDEX] == index
        assert (envs[names.ENV_MEM_CONTAINER], envs[names.ENV_MEM_DEVICE]) == ("10", "16")
        assert envs[names.ENV_MEM_LIMIT] == "10240"
        assert envs[names.ENV_MEM_POD] == "20", "of all its containers"
    for resource in (names.GPU_MEM, names.GPU_CORE):
        first, second = (gpus_of(admitted.devices[name][resource]) for name in ("first", "second"))
        assert len(first) == len(second) == 1
        assert first != second
    await world.until_assigned("a")
    annotations = world.api.annotations("pods", "default/a")
    assert annotations[names.ANN_ALLOCATION] == '{"0":{"1":10},"2":{"3":10}}'
    assert annotations[names.ANN_CORE] == '{"0":{"1":30},"2":{"3":30}}'
    assert world.api.reported("GPUAllocationReconciled") == []


async def test_after_a_restart_each_container_still_has_its_own_gpu(world: World) -> None:
    await start(world)
    made = world.bind("a", container("first", 10), container("second", 10), on=(0, 2), labels=APART)
    await world.kubelet.admit(made)
    await world.until_assigned("a")
    before = world.recorded("a")
    await world.stop()
    await world.start()
    other = world.bind("b", container("first", 10), container("second", 10), on=(1, 3), labels=APART)
    admitted = await world.kubelet.admit(other)
    assert [admitted.envs[name][names.ENV_MEM_INDEX] for name in ("first", "second")] == ["1", "3"]
    await world.until_assigned("b")
    assert world.recorded("a") == before


@pytest.mark.parametrize("apart_first", [True, False], ids=["apart is older", "apart is younger"])
@pytest.mark.parametrize("listed", [True, False], ids=["listed", "unlisted"])
@pytest.mark.parametrize(("mode", "core"), [("share", 0), ("core_mem", 30)])
async def test_an_ordinary_pod_with_the_same_request_moves_no_container_off_its_gpu(
    world: World, apart_first: bool, listed: bool, mode: str, core: int
) -> None:
    """The older is admitted first, as kubelets do."""
    await start(world, mode=mode)

    def apart() -> dict[str, object]:
        return world.bind("apart", container("x", 5, core), container("y", 5, core), on=(0, 1), labels=APART)

    def ordinary() -> dict[str, object]:
        return world.bind("ordinary", container("z", 5, core), on=2)

    pods = [make() for make in ((apart, ordinary) if apart_first else (ordinary, apart))]
    agent = world.agent
    await world.changes.until(lambda: len(agent._pods.uids()) == 2, "the agent knows both")
    world.kubelet.lists_admitting = listed
    announced = {}
    for pod in pods:
        admitted = await world.kubelet.admit(pod)
        for name, envs in admitted.envs.items():
            announced[name] = (envs[names.ENV_MEM_INDEX], envs[names.ENV_MEM_POD])
    assert announced == {"x": ("0", "10"), "y": ("1", "10"), "z": ("2", "5")}
    await world.until_assigned("apart", "ordinary")
    assert world.api.reported("GPUAllocationReconciled") == []
