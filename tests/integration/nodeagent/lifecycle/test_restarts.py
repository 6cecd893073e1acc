"""Restarts of kubelets and node agents with pods running."""

import asyncio
from dataclasses import replace

import pytest

from gpushare.api import names
from gpushare.api.node.modes import MODES
from gpushare.nodeagent.deviceplugin import registration
from gpushare.nodeagent.modes.rules import rules_of
from tests.integration.nodeagent.cluster_objects import NODE, container
from tests.integration.nodeagent.conftest import World
from tests.integration.nodeagent.scripted_kubelet import Admitted, HangsUp
from tests.integration.nodeagent.scripted_nvml import gpu


async def test_a_restarted_kubelet_that_wipes_the_sockets_gets_the_resources_again(
    world: World,
) -> None:
    await world.start()
    await world.run_pod("before", 3, on=1)
    await world.kubelet.restart()
    assert world.kubelet.capacity(names.GPU_MEM) is None
    await world.changes.until(lambda: world.kubelet.capacity(names.GPU_MEM) == 30, "registered again")
    assert world.kubelet.registrations == [names.GPU_MEM] * 2
    admitted = await world.run_pod("after", 4, on=1)
    assert admitted.envs["c"][names.ENV_MEM_INDEX] == "1"


async def test_the_agent_waits_for_a_kubelet_that_is_not_running_yet(world: World) -> None:
    await world.kubelet.stop()
    await world.start(ready=False)
    await world.changes.until(lambda: world.api.capacity("n1").get(names.GPU_COUNT) == "2")
    await world.kubelet.start()
    await world.changes.until(lambda: world.kubelet.capacity(names.GPU_MEM) == 30)


async def test_a_pod_served_while_nothing_could_be_written_is_marked_by_the_next_agent(world: World) -> None:
    await world.start()
    made = world.bind("a", container("c", 3), on=0)
    second = world.bind("twin", container("c", 3), on=1)
    await world.run_pod("known", 5, on=0)
    await world.until_assigned("known")  # so the informer has seen the pods before it
    world.api.refusing = True
    world.changes.notify()
    await world.kubelet.admit(made)
    await world.stop()
    world.api.refusing = False
    await world.start()
    await world.until_assigned("a")
    assert not world.assigned("twin")
    assert (await world.kubelet.admit(second)).envs["c"][names.ENV_MEM_INDEX] == "1"


async def test_ids_stay_when_the_driver_renumbers_the_gpus(world: World) -> None:
    await world.start()
    before = set(world.kubelet.endpoints[names.GPU_MEM].devices)
    await world.run_pod("a", 3, on=0)
    await world.until_assigned("a")
    await world.stop()
    world.nvml.gpus = [replace(gpu(1), index=0), replace(gpu(0), index=1)]
    await world.start()
    await world.changes.until(lambda: world.kubelet.endpoints[names.GPU_MEM].alive)
    assert set(world.kubelet.endpoints[names.GPU_MEM].devices) == before
    # Old readers know GPUs by index: the record follows, the GPU is the same.
    await world.changes.until(lambda: world.recorded("a").gpus[0].index == 1)
    assert world.recorded("a").gpus[0].uuid == gpu(0).uuid


async def test_a_gpu_with_an_xid_stays_out_of_service_until_long_enough_without_one(
    world: World,
) -> None:
    world.use(xid_recovery_s=1000.0)
    await world.start()
    world.nvml.send_xid(gpu(0).uuid, 79)
    await world.changes.until(lambda: world.kubelet.allocatable(names.GPU_MEM) == 15)
    await world.changes.until(lambda: world.api.reported("GPUUnhealthy"))
    for _ in range(2):
        await world.stop()
        await world.start()
        assert world.kubelet.allocatable(names.GPU_MEM) == 15
    assert len(world.api.reported("GPUUnhealthy")) == 1
    assert not world.api.reported("GPURecovered")
    await world.stop()
    world.use(xid_recovery_s=0.05)
    await world.start()
    await world.changes.until(lambda: world.kubelet.allocatable(names.GPU_MEM) == 30)
    await world.changes.until(lambda: world.api.reported("GPURecovered"))


async def test_the_agent_waits_for_an_api_server_that_is_down_at_start(world: World) -> None:
    world.api.refusing = True
    await world.start(ready=False)
    agent = world.agent
    await world.changes.until(lambda: len(world.api.requests) >= 2)
    assert any("not read yet" in one for one in agent.missing())
    world.api.refusing = False
    await world.ready()
    assert agent.missing() == [] or "not registered" in agent.missing()[0]


async def test_no_pod_is_refused_before_a_kubelet_that_allocates_early_has_listed_its_pods(
    world: World,
) -> None:
    await world.start()
    made = world.bind("a", container("c", 3), on=1)
    await world.kubelet.admit(made)
    await world.until_assigned("a")
    await world.kubelet.stop()
    world.kubelet.admitted.clear()
    world.kubelet.listing_works = False
    await world.kubelet.start()
    await world.changes.until(lambda: world.kubelet.capacity(names.GPU_MEM) == 30)
    before = world.kubelet.calls.count("failed List")
    admission = asyncio.create_task(world.kubelet.admit(made))
    await world.changes.until(lambda: world.kubelet.calls.count("failed List") > before + 1, "failed lists")
    world.kubelet.listing_works = True
    assert (await admission).envs["c"][names.ENV_MEM_INDEX] == "1"


@pytest.mark.parametrize("mode", ["share", "core_mem"])
@pytest.mark.parametrize("when", ["unasked", "unanswered"])
async def test_the_devices_return_soon_after_the_kubelet_disconnects_a_new_plugin(
    world: World, mode: str, when: HangsUp
) -> None:
    """As happens when an earlier agent's list ends in that moment: no connection of ours shows it, or too early."""
    resources = [one.name for one in rules_of(MODES[mode]).plugins]
    world.kubelet.hangs_up = [when] * len(resources)
    await world.start(mode=mode)
    assert sorted(world.kubelet.disconnections) == sorted(resources)
    assert world.kubelet.allocatable(names.GPU_MEM) == 30
    admitted = await world.run_pod("a", 3, on=1, core=30 if len(resources) > 1 else 0)
    assert admitted.envs["c"][names.ENV_MEM_INDEX] == "1"
    assert len(world.kubelet.registrations) == 2 * len(resources)


async def test_an_agent_is_not_ready_until_the_kubelet_requests_its_devices(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "_ASKS_FIRST_S", 0.2)
    world.kubelet.hangs_up = ["unasked"] * 3
    await world.start(ready=False)
    agent = world.agent
    await world.changes.until(lambda: len(world.kubelet.registrations) >= 1)
    await world.changes.until(
        lambda: (
            agent.missing() == [f"{names.GPU_MEM} not registered with the kubelet"]
            and names.ANN_DEVICES in world.api.annotations("nodes", NODE)
        )
    )
    await world.ready()
    # More on a machine where the kubelet takes longer to call than the timeout.
    assert len(world.kubelet.registrations) >= 4


async def test_a_kubelet_that_died_before_recording_an_init_container_may_allocate_again(
    world: World,
) -> None:
    """It lists nothing of init containers: only its restart shows whether it received the response."""
    await world.start()
    made = world.bind("a", container("c", 3), on=0, init=(container("i", 2),))
    await world.kubelet._allocate(Admitted(made), made["spec"]["initContainers"][0], {}, ())
    await world.kubelet.restart()
    await world.ready()
    admitted = await world.kubelet.admit(made)
    assert admitted.envs["c"][names.ENV_MEM_INDEX] == "0"
    await world.until_assigned("a")
