"""GPUs that fail and recover, and nodes that have none."""

from dataclasses import replace

from gpushare.api import names
from gpushare.api.node.device import Device, described_devices
from gpushare.api.objects import decode_node
from gpushare.nodeagent.driver.nvml import Unreadable
from tests.integration.nodeagent.cluster_objects import NODE
from tests.integration.nodeagent.conftest import World
from tests.integration.nodeagent.scripted_nvml import gpu


def devices(world: World) -> tuple[Device, ...]:
    found = described_devices(decode_node(world.api.objects["nodes", NODE]))
    assert found is not None
    return tuple(found[2])


def device(world: World, index: int) -> Device:
    return devices(world)[index]


async def test_a_driver_without_xid_events_is_watched_by_probes(world: World) -> None:
    world.nvml.reports_xids = False
    await world.start()
    world.nvml.faults[gpu(0).uuid] = "GPU is lost"
    await world.changes.until(lambda: world.kubelet.allocatable(names.GPU_MEM) == 15)


async def test_a_gpu_that_vanishes_stays_described_as_unhealthy(world: World) -> None:
    await world.start()
    opened = world.nvml.opened
    world.nvml.faults[gpu(1).uuid] = "GPU is lost"
    world.nvml.gpus = world.nvml.gpus[:1]
    await world.changes.until(lambda: device(world, 1).reason == "NVML no longer finds it")
    assert world.nvml.opened > opened
    assert world.kubelet.capacity(names.GPU_MEM) == 30
    world.nvml.gpus = [gpu(0), gpu(1)]
    world.nvml.faults.clear()
    await world.changes.until(lambda: world.kubelet.allocatable(names.GPU_MEM) == 30)


async def test_a_gpu_that_appears_is_offered_and_running_pods_are_not_disturbed(world: World) -> None:
    world.nvml.gpus = [gpu(0)]
    await world.start()
    await world.run_pod("a", 4, on=0)
    await world.until_assigned("a")
    registrations = list(world.kubelet.registrations)
    # It is inserted before the other one in bus order.
    first, moved = replace(gpu(1), index=0), replace(gpu(0), index=1)
    world.nvml.gpus = [first, moved]
    await world.changes.until(lambda: world.kubelet.allocatable(names.GPU_MEM) == 30)
    await world.changes.until(lambda: [one.uuid for one in devices(world)] == [first.uuid, moved.uuid])
    await world.run_pod("b", 4, on=0)
    await world.until_assigned("b")
    # The pod keeps its GPU, and its record has the new index.
    await world.changes.until(lambda: world.recorded("a").gpus[0].index == 1)
    assert world.recorded("a").gpus[0].uuid == moved.uuid
    assert world.recorded("b").gpus[0].uuid == first.uuid
    assert world.kubelet.registrations == registrations


async def test_a_gpu_that_leaves_mig_mode_is_offered(world: World) -> None:
    world.nvml.gpus = [gpu(0), gpu(1, mig=True)]
    await world.start()
    assert world.kubelet.capacity(names.GPU_MEM) == 15
    world.nvml.gpus = [gpu(0), gpu(1)]
    await world.changes.until(lambda: world.kubelet.allocatable(names.GPU_MEM) == 30)


async def test_a_share_node_without_a_gpu_gets_an_event(world: World) -> None:
    world.nvml.gpus = []
    await world.start(ready=False)
    await world.changes.until(lambda: world.api.reported("NoGPU"))
    assert "finds no GPU" in world.api.reported("NoGPU")[0]["note"]
    world.nvml.gpus = [gpu(0)]
    await world.ready()
    assert world.kubelet.capacity(names.GPU_MEM) == 15


async def test_a_node_whose_only_gpu_is_lost_is_not_advised_to_drop_its_label(world: World) -> None:
    world.nvml.gpus, world.nvml.unreadable = [], (Unreadable(0, "GPU is lost"),)
    await world.start(ready=False)
    await world.changes.until(lambda: world.api.reported("NoGPU"))
    note = world.api.reported("NoGPU")[0]["note"]
    assert (
        "no GPU of the node can be shared: GPU 0 cannot be read (GPU is lost); run nvidia-smi and dmesg"
        in note
    )
    assert "label" not in note
    agent = world.agent
    # Events that arrive while the first is being sent are counted on it.
    await world.changes.until(lambda: not agent._recorder.waiting, "it is written")
    world.nvml.gpus, world.nvml.unreadable = [gpu(0, mig=True)], ()
    await world.changes.until(lambda: "nvidia-smi -i 0 -mig 0" in world.api.reported("NoGPU")[-1]["note"])
    assert "dmesg" not in world.api.reported("NoGPU")[-1]["note"]


async def test_a_gpu_in_mig_mode_is_excluded_and_reported(world: World) -> None:
    world.nvml.gpus = [gpu(0), gpu(1, mig=True)]
    await world.start()
    assert world.kubelet.capacity(names.GPU_MEM) == 15
    await world.changes.until(lambda: world.api.reported("GPUExcluded"))
    assert "nvidia-smi -i 1 -mig 0" in world.api.reported("GPUExcluded")[0]["note"]


async def test_all_nvml_calls_come_from_one_thread(world: World) -> None:
    world.use(xid_recovery_s=1000.0)  # else it may have recovered before anybody looks
    await world.start()
    world.nvml.send_xid(gpu(0).uuid, 48)
    await world.changes.until(lambda: world.api.reported("GPUUnhealthy"))
    assert len(world.nvml.threads) == 1
