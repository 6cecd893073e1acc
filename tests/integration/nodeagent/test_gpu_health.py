"""GPUs that break and mend, and nodes that have none."""

from gpushare.api import names
from gpushare.api.node.device import Device, described_devices
from gpushare.api.objects import decode_node
from gpushare.nodeagent.driver.nvml import Unreadable
from tests.integration.nodeagent.cluster_objects import NODE
from tests.integration.nodeagent.conftest import World
from tests.integration.nodeagent.scripted_nvml import gpu
from tests.integration.nodeagent.test_clock_jumps import QUIET_S, JumpingClock


def device(world: World, index: int) -> Device:
    found = described_devices(decode_node(world.api.objects["nodes", NODE]))
    assert found is not None
    return found[2][index]


async def test_a_gpu_that_is_lost_takes_its_devices_out_and_brings_them_back(world: World) -> None:
    await world.start()
    world.nvml.faults[gpu(1).uuid] = "GPU is lost"
    await world.changes.until(lambda: world.kubelet.allocatable(names.GPU_MEM) == 15)
    assert world.kubelet.capacity(names.GPU_MEM) == 30
    await world.changes.until(lambda: device(world, 1).reason == "GPU is lost")
    await world.changes.until(lambda: world.api.told("GPUUnhealthy"))
    assert device(world, 0).healthy
    world.nvml.faults.clear()
    await world.changes.until(lambda: world.kubelet.allocatable(names.GPU_MEM) == 30)
    await world.changes.until(lambda: device(world, 1).healthy and world.api.told("GPURecovered"))


async def test_a_critical_xid_takes_a_gpu_out_until_it_has_been_quiet(world: World) -> None:
    clock = world.clock = JumpingClock()
    world.use(xid_recovery_s=QUIET_S)
    await world.start()
    world.nvml.send_xid(gpu(0).uuid, 48)
    await world.changes.until(lambda: world.kubelet.went(names.GPU_MEM, 30, 15, since=0))
    clock.passed_s = QUIET_S
    await world.changes.until(lambda: world.kubelet.went(names.GPU_MEM, 30, 15, 30, since=0))
    await world.changes.until(lambda: world.api.told("GPUUnhealthy"))
    assert world.api.told("GPUUnhealthy")[0]["note"] == (
        f"GPU 0 ({gpu(0).uuid}) is taken out of service: critical error XID 48; "
        "trusted again 1000 s after its last error, if it answers"
    )


async def test_an_applications_own_xid_takes_nothing_out(world: World) -> None:
    await world.start()
    for xid in (13, 31, 43, 45, 68, 109):
        world.nvml.send_xid(gpu(0).uuid, xid)
    world.nvml.send_xid(gpu(1).uuid, 79)
    await world.changes.until(lambda: world.api.told("GPUUnhealthy"))
    assert [gpu(1).uuid in event["note"] for event in world.api.told("GPUUnhealthy")] == [True]


async def test_a_driver_without_xid_events_is_watched_by_probes(world: World) -> None:
    world.nvml.reports_xids = False
    await world.start()
    world.nvml.faults[gpu(0).uuid] = "GPU is lost"
    await world.changes.until(lambda: world.kubelet.allocatable(names.GPU_MEM) == 15)


async def test_a_gpu_that_vanishes_stays_described_as_not_healthy(world: World) -> None:
    await world.start()
    opened = world.nvml.opened
    world.nvml.faults[gpu(1).uuid] = "GPU is lost"
    world.nvml.gpus = world.nvml.gpus[:1]
    await world.changes.until(lambda: device(world, 1).reason == "NVML does not find it any more")
    assert world.nvml.opened > opened
    assert world.kubelet.capacity(names.GPU_MEM) == 30
    world.nvml.gpus = [gpu(0), gpu(1)]
    world.nvml.faults.clear()
    await world.changes.until(lambda: world.kubelet.allocatable(names.GPU_MEM) == 30)


async def test_a_share_node_without_a_driver_is_told_what_to_do_and_looked_at_again(world: World) -> None:
    world.nvml.driver = False
    await world.start(ready=False)
    await world.changes.until(lambda: world.api.told("DriverNotFound"))
    event = world.api.told("DriverNotFound")[0]
    assert event["regarding"] == {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": NODE}
    assert "Install the NVIDIA driver" in event["note"]
    assert world.kubelet.registrations == []
    world.nvml.driver = True
    await world.ready()


async def test_a_driver_that_opens_and_fails_is_one_event_and_opened_anew_until_it_works(
    world: World,
) -> None:
    await world.start()
    opened = world.nvml.opened
    world.nvml.breaks = "version mismatch"
    await world.changes.until(lambda: device(world, 1).reason == "version mismatch")
    await world.changes.until(lambda: world.api.told("DriverFailed"))
    await world.changes.until(lambda: world.nvml.opened >= opened + 3)
    assert [one["reason"] for one in world.api.events] == ["DriverFailed"]
    world.nvml.breaks = ""
    await world.changes.until(lambda: device(world, 1).healthy and world.api.told("DriverReady"))


async def test_a_share_node_without_a_gpu_is_told_so(world: World) -> None:
    world.nvml.gpus = []
    await world.start(ready=False)
    await world.changes.until(lambda: world.api.told("NoGPU"))
    assert "finds no GPU" in world.api.told("NoGPU")[0]["note"]
    world.nvml.gpus = [gpu(0)]
    await world.ready()
    assert world.kubelet.capacity(names.GPU_MEM) == 15


async def test_a_node_whose_only_gpu_is_lost_is_not_told_to_drop_its_label(world: World) -> None:
    world.nvml.gpus, world.nvml.unreadable = [], (Unreadable(0, "GPU is lost"),)
    await world.start(ready=False)
    await world.changes.until(lambda: world.api.told("NoGPU"))
    note = world.api.told("NoGPU")[0]["note"]
    assert (
        "no GPU of the node can be shared: GPU 0 cannot be read (GPU is lost); nvidia-smi and dmesg" in note
    )
    assert "label" not in note
    agent = world.agent
    assert agent is not None
    # What comes while the first is on its way is counted on it.
    await world.changes.until(lambda: not agent._recorder.waiting, "it is written")
    world.nvml.gpus, world.nvml.unreadable = [gpu(0, mig=True)], ()
    await world.changes.until(lambda: "nvidia-smi -i 0 -mig 0" in world.api.told("NoGPU")[-1]["note"])
    assert "dmesg" not in world.api.told("NoGPU")[-1]["note"]


async def test_a_gpu_in_mig_mode_is_left_out_and_named(world: World) -> None:
    world.nvml.gpus = [gpu(0), gpu(1, mig=True)]
    await world.start()
    assert world.kubelet.capacity(names.GPU_MEM) == 15
    await world.changes.until(lambda: world.api.told("GPUExcluded"))
    assert "nvidia-smi -i 1 -mig 0" in world.api.told("GPUExcluded")[0]["note"]


async def test_all_calls_of_nvml_come_from_one_thread(world: World) -> None:
    await world.start()
    world.nvml.send_xid(gpu(0).uuid, 48)
    await world.changes.until(lambda: world.api.told("GPUUnhealthy"))
    assert len(world.nvml.threads) == 1


async def test_gpus_of_different_sizes_each_have_their_own(world: World) -> None:
    world.nvml.gpus = [gpu(0, 15360), gpu(1, 81559)]
    await world.start()
    assert world.kubelet.capacity(names.GPU_MEM) == 15 + 79
    envs = (await world.run_pod("a", 40, on=1)).envs["c"]
    assert (envs[names.ENV_MEM_DEVICE], envs[names.ENV_MEM_LIMIT]) == ("79", str(81559 * 40 // 79))


async def test_eight_h200_in_128_mib_units_fit_into_the_kubelets_message(world: World) -> None:
    from gpushare.api.quantity import MemoryUnit
    from gpushare.kubeletapi import MAX_MESSAGE_BYTES

    world.nvml.gpus = [gpu(index, 143771) for index in range(8)]
    world.use(unit=MemoryUnit.MIB_128)
    await world.start()
    assert world.kubelet.capacity(names.GPU_MEM) == 8 * 1123
    assert 0 < world.kubelet.endpoints[names.GPU_MEM].lists[-1] < MAX_MESSAGE_BYTES // 8
    envs = (await world.run_pod("a", 16, on=7)).envs["c"]
    assert envs[names.ENV_MEM_LIMIT] == str(143771 * 16 // 1123)
