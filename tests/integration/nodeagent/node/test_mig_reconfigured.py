"""MIG instances that an administrator destroys while the agent runs."""

from dataclasses import replace

import pytest

from gpushare.api import names
from tests.integration.nodeagent.conftest import QUICK, World
from tests.integration.nodeagent.lifecycle.test_clock_jumps import JumpingClock
from tests.integration.nodeagent.node.test_gpu_health import devices
from tests.integration.nodeagent.scripted_nvml import divisible, gpu

PARENT = divisible(1)
FIRST, SECOND = (one for one in PARENT.placements if one.profile == "3g.40gb")
REOPEN_S = 30.0


@pytest.fixture
async def clock(world: World) -> JumpingClock:
    """That of an agent on a node with a GPU that is divided into two instances, and a whole one."""
    world.use(pace=replace(QUICK, reopen_s=REOPEN_S))
    world.clock = clock = JumpingClock()
    world.nvml.gpus = [gpu(0), PARENT]
    world.nvml.divide(PARENT.uuid, FIRST, SECOND)
    await world.start()
    assert [one.index for one in devices(world)] == [0, 23, 27]
    return clock


async def until_described(world: World, clock: JumpingClock, *expected: int) -> None:
    """Until the node has the GPUs with these indices, and all are in service."""
    clock.passed_s += REOPEN_S
    wanted = [(index, "") for index in expected]
    await world.changes.until(
        lambda: [(one.index, one.reason) for one in devices(world)] == wanted, f"the GPUs are {expected}"
    )


async def assert_stays_open(world: World, clock: JumpingClock) -> None:
    """NVML is not reopened within two minutes."""
    opened = world.nvml.opened
    for _ in range(4):
        clock.passed_s += REOPEN_S
        probes = world.nvml.probes
        await world.changes.until(
            lambda before=probes: world.nvml.opened > opened or world.nvml.probes > before + 10, "it probes"
        )
    assert world.nvml.opened == opened


async def test_an_instance_that_was_destroyed_is_gone(world: World, clock: JumpingClock) -> None:
    world.nvml.divide(PARENT.uuid, FIRST)
    await until_described(world, clock, 0, 23)
    await assert_stays_open(world, clock)
    assert world.kubelet.capacity(names.GPU_MEM) == 15 + 39
    assert not world.api.reported("GPUUnhealthy")


async def test_an_instance_that_failed_before_it_was_destroyed_is_gone(
    world: World, clock: JumpingClock
) -> None:
    world.nvml.faults[f"MIG-{SECOND.name}"] = "Not Found"
    await world.changes.until(lambda: not all(one.healthy for one in devices(world)), "its probes fail")
    world.nvml.divide(PARENT.uuid, FIRST)
    await until_described(world, clock, 0, 23)
    await assert_stays_open(world, clock)


async def test_without_its_last_instance_a_gpu_is_excluded(world: World, clock: JumpingClock) -> None:
    world.nvml.divide(PARENT.uuid)
    await until_described(world, clock, 0)
    await assert_stays_open(world, clock)
    await world.changes.until(lambda: world.api.reported("GPUExcluded"))
    assert not world.api.reported("GPUUnhealthy")


async def test_a_gpu_whose_mig_mode_was_switched_off_is_whole(world: World, clock: JumpingClock) -> None:
    world.nvml.gpus = [gpu(0), gpu(1)]
    await until_described(world, clock, 0, 1)
    await assert_stays_open(world, clock)
    assert not world.api.reported("GPUUnhealthy")


async def test_instances_that_cannot_be_read_stay_described(world: World, clock: JumpingClock) -> None:
    world.nvml.gpus = [gpu(0), replace(PARENT, hides_instances=True)]
    clock.passed_s += REOPEN_S
    await world.changes.until(
        lambda: [one.index for one in devices(world) if one.reason == "NVML no longer finds it"] == [23, 27]
    )
    world.nvml.divide(PARENT.uuid, FIRST, SECOND)
    await until_described(world, clock, 0, 23, 27)
