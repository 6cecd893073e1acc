"""A node whose clock is set forwards and back while pods are created and deleted."""

import time

import pytest

from gpushare.api import names
from gpushare.kube.clock import SystemClock
from tests.integration.nodeagent.conftest import World
from tests.integration.nodeagent.scripted_nvml import gpu

YEARS_S = 10 * 365 * 86400
#: Advances only when a test advances it.
QUIET_S = 1000.0


class JumpingClock(SystemClock):
    """The wall clock is wrong by ``off_s`` seconds; time passes normally, plus ``passed_s``."""

    def __init__(self) -> None:
        self.off_s = 0
        self.passed_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.passed_s

    def time_ns(self) -> int:
        return time.time_ns() + self.off_s * 1_000_000_000


@pytest.mark.parametrize("jumps", [(YEARS_S, 0), (-YEARS_S, 0), (YEARS_S, -YEARS_S)])
async def test_pods_records_health_and_events_continue(world: World, jumps: tuple[int, int]) -> None:
    clock = world.clock = JumpingClock()
    world.use(xid_recovery_s=QUIET_S)
    await world.start()
    for number, clock.off_s in enumerate((0, *jumps)):
        name, on = f"p{number}", number % 2
        assert (await world.run_pod(name, 3, on=on)).envs["c"][names.ENV_VISIBLE_DEVICES] == gpu(on).uuid
        await world.until_assigned(name)
        lists = len(world.kubelet.endpoints[names.GPU_MEM].healthy)
        world.nvml.send_xid(gpu(0).uuid, 48)
        await world.changes.until(
            lambda since=lists: world.kubelet.went(names.GPU_MEM, 15, since=since), "out of service"
        )
        clock.passed_s += QUIET_S
        await world.changes.until(
            lambda since=lists: world.kubelet.went(names.GPU_MEM, 15, 30, since=since), "trusted again"
        )
    await world.kubelet.restart()
    await world.changes.until(lambda: world.kubelet.is_served(names.GPU_MEM), "registered again")
    await world.changes.until(
        lambda: world.api.reported("GPUUnhealthy") and world.api.reported("GPURecovered"), "both are reported"
    )
