"""One fault of a node is one event, also over restarts of its agent; a fault that recurs is another."""

import msgspec

from gpushare.api import names
from gpushare.api.node.device import described_devices
from gpushare.api.objects import decode_node
from gpushare.nodeagent.driver.nvml import Unreadable
from tests.integration.nodeagent.cluster_objects import NODE
from tests.integration.nodeagent.conftest import World
from tests.integration.nodeagent.isolation.test_watchdog import (
    contained,
    exported,
    first_gpu,
    process,
    report_container,
    uses,
    watch,
)
from tests.integration.nodeagent.node.test_condition import ready
from tests.integration.nodeagent.scripted_nvml import gpu


def node_events(world: World) -> list[str]:
    """The reasons of all events of the node, in order."""
    return [one["reason"] for one in world.api.events if one["regarding"]["name"] == NODE]


def reasons(world: World) -> list[str]:
    """The reason why each described GPU is out of service; empty where it is not."""
    found = described_devices(decode_node(world.api.objects["nodes", NODE]))
    return [] if found is None else [device.reason for device in found[2]]


def lose(world: World, *indices: int) -> None:
    """These fall off the bus: NVML counts them and does not answer."""
    world.nvml.faults = {gpu(index).uuid: "GPU is lost" for index in indices}
    world.nvml.unreadable = tuple(Unreadable(index, "GPU is lost") for index in indices)
    world.nvml.gpus = [one for one in world.nvml.gpus if one.index not in indices]


def mend(world: World) -> None:
    world.nvml.faults, world.nvml.unreadable = {}, ()
    world.nvml.gpus = [gpu(0), gpu(1)]


async def again(world: World) -> None:
    """The agent is killed, and another starts; faults that it finds have been reported already, if any."""
    await world.stop()
    await world.start(ready=False)
    agent = world.agent
    await world.changes.until(lambda: not agent.missing(), "the agent is ready")
    # An event of something that lasts is queued again and again, for its count: written once is enough.
    await world.changes.until(
        lambda: agent._status.settled and all(event.written for event in agent._recorder._waiting.values()),
        "all is written",
    )


async def test_a_lost_gpu_is_one_event_however_often_nvml_and_the_agent_restart(world: World) -> None:
    await world.start()
    lose(world, 1)
    await world.changes.until(
        lambda: node_events(world) and reasons(world) == ["", "GPU is lost"], "reported"
    )
    opened = world.nvml.opened
    await world.changes.until(lambda: world.nvml.opened > opened + 1, "NVML is opened again")
    assert reasons(world) == ["", "GPU is lost"]
    for _ in range(2):
        await again(world)
        assert reasons(world) == ["", "GPU is lost"], "it stays described"
        await world.changes.until(lambda: world.kubelet.capacity(names.GPU_MEM) == 30, "and is counted")
        assert ready(world)[1] == "SomeGPUsUnhealthy"
    assert node_events(world) == ["GPUUnhealthy"]
    await world.stop()
    mend(world)
    await world.start()
    await world.changes.until(lambda: len(node_events(world)) == 2, "its recovery meanwhile is reported")
    lose(world, 1)
    await world.changes.until(lambda: len(node_events(world)) == 3, "it went and came back")
    mend(world)
    await world.changes.until(lambda: len(node_events(world)) == 4, "its recovery is reported")
    assert node_events(world) == ["GPUUnhealthy", "GPURecovered", "GPUUnhealthy", "GPURecovered"]


async def test_a_failing_driver_is_one_event_also_across_agent_restarts(world: World) -> None:
    await world.start()
    world.nvml.refuses, world.nvml.exchanged = "Driver/library version mismatch", True
    await world.changes.until(lambda: ready(world)[1] == "DriverFailed", "said")
    for _ in range(2):
        await again(world)
    assert node_events(world) == ["DriverFailed"]
    world.nvml.refuses = ""
    await world.changes.until(lambda: len(node_events(world)) == 2, "reported")
    assert node_events(world) == ["DriverFailed", "DriverReady"]


async def test_an_unknown_mode_is_in_the_condition_and_one_event(world: World) -> None:
    await world.start()
    node = msgspec.json.decode(msgspec.json.encode(world.api.objects["nodes", NODE]))
    node["metadata"]["labels"][names.LABEL_MODE] = "shrae"
    world.api.put("nodes", NODE, node)
    await world.changes.until(lambda: ready(world)[:2] == ("False", "UnknownGPUMode"), "said")
    assert "=shrae is unknown; use one of default, share" in ready(world)[2]
    await again(world)
    assert node_events(world) == ["UnknownGPUMode"]
    node = msgspec.json.decode(msgspec.json.encode(world.api.objects["nodes", NODE]))
    node["metadata"]["labels"][names.LABEL_MODE] = "share"
    world.api.put("nodes", NODE, node)
    await world.changes.until(lambda: ready(world)[:2] == ("True", "Sharing"), "shares")


async def test_an_agent_that_stops_without_a_successor_reports_the_node_as_unattended(world: World) -> None:
    await world.start()
    await world.changes.until(lambda: ready(world)[1] == "Sharing", "shares")
    agent = world.agent
    assert not await agent.leave()
    assert ready(world)[:2] == ("Unknown", "AgentStopped")
    assert ready(world)[2].startswith(
        "the node agent has stopped; last known state: mode share, unit 1GiB, 2 of 2 GPUs"
    )
    await again(world)
    await world.changes.until(lambda: ready(world)[:2] == ("True", "Sharing"), "shares again")
    assert node_events(world) == []


async def test_ongoing_overuse_and_unmanaged_use_are_one_event_across_agent_restarts(world: World) -> None:
    watch(world)
    await world.start(mode="cgpu")
    admitted = await world.run_pod("a", 3, on=0)
    await world.until_assigned("a")
    report_container(world, "a")
    process(world, 41, contained(admitted))
    process(world, 42)
    uses(world, (41, 100, 0))
    await world.changes.until(
        lambda: exported(world, "memory_used_bytes") == 100 << 20, "it is known which container"
    )
    uses(world, (41, 3200, 0), (42, 1500, 0))
    await world.changes.until(
        lambda: world.api.reported("GPUMemoryExceeded") and world.api.reported("UnmanagedGPUUsage"),
        "both are reported",
    )
    # 1500 MiB, and 128 MiB above the share.
    await world.changes.until(lambda: first_gpu(world).foreign_mib == 1664, "described")
    for _ in range(2):
        await again(world)
    assert len(world.api.reported("GPUMemoryExceeded")) == 1
    assert node_events(world) == ["UnmanagedGPUUsage"]
    uses(world)
    await world.changes.until(lambda: world.api.reported("UnmanagedGPUUsageResolved"), "ended")
    uses(world, (42, 1500, 0))
    await world.changes.until(lambda: len(world.api.reported("UnmanagedGPUUsage")) == 2, "it came back")
