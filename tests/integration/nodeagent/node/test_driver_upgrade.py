"""NVIDIA's GPU Operator replaces the driver under a running agent."""

from pathlib import Path

import pytest

from gpushare.api import names
from gpushare.nodeagent.dra import driver
from gpushare.nodeagent.isolation.backends import mps
from tests.integration.nodeagent.cluster_objects import NODE
from tests.integration.nodeagent.conftest import World
from tests.integration.nodeagent.isolation.isolating import install
from tests.integration.nodeagent.node.test_dra import FIRST, SECOND, started, taints
from tests.integration.nodeagent.scripted_nvml import gpu

PAUSED = {"nvidia.com/gpu.deploy.dcgm-exporter": "paused-for-driver-upgrade"}


def label(world: World, mode: str, **more: str) -> None:
    world.api.label_node(NODE, {names.LABEL_MODE: mode, **more})


async def test_nvml_is_closed_while_the_driver_is_replaced_and_running_pods_keep_their_record(
    world: World,
) -> None:
    await world.start()
    await world.run_pod("a", 4, on=0)
    await world.until_assigned("a")
    label(world, "share", **PAUSED)
    await world.changes.until(
        lambda: not world.nvml.is_open and world.kubelet.allocatable(names.GPU_MEM) == 0
    )
    opened = world.nvml.opened
    await world.changes.until(lambda: world.api.reported("DriverReleased"))
    assert world.api.reported("DriverReleased")[0]["note"] == (
        "the node agent has closed the driver, so that it can be replaced: the node has the label "
        "nvidia.com/gpu.deploy.dcgm-exporter=paused-for-driver-upgrade"
    )
    assert (world.nvml.opened, world.recorded("a").units) == (opened, 4)
    label(world, "share")
    await world.changes.until(lambda: world.nvml.is_open and world.kubelet.allocatable(names.GPU_MEM) == 30)
    await world.changes.until(lambda: world.api.reported("DriverReady"))


async def test_claims_are_not_evicted_from_a_driver_that_is_replaced(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "EVICT_AFTER_S", 0.0)
    await started(world)
    label(world, "dra", **PAUSED)
    await world.changes.until(lambda: taints(world).keys() == {FIRST, SECOND})
    assert {effect for _, _, effect in taints(world).values()} == {"NoSchedule"}
    label(world, "dra")
    await world.changes.until(lambda: not taints(world))


async def test_mps_daemons_of_gpus_that_no_pod_holds_leave_the_driver(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = world.folder / "host" / "usr" / "bin" / mps.CONTROL
    daemon.parent.mkdir(parents=True)
    daemon.write_text(
        '#!/bin/sh\necho $$ >"$CUDA_MPS_PIPE_DIRECTORY/pid.new"\n'
        'mv "$CUDA_MPS_PIPE_DIRECTORY/pid.new" "$CUDA_MPS_PIPE_DIRECTORY/pid"\nexec sleep 1000\n'
    )
    daemon.chmod(0o755)
    install(world)
    monkeypatch.setattr(mps, "_FOLDERS", (str(daemon.parent).lstrip("/"),))
    monkeypatch.setattr(mps, "outlives_us", lambda: False)
    pids = [
        world.settings.isolation.folder.parent / "mps" / gpu(index).uuid / "pipe" / "pid" for index in (0, 1)
    ]

    def runs(index: int) -> bool:
        return pids[index].exists() and Path("/proc", pids[index].read_text().strip()).exists()

    await world.start(mode="mps")
    await world.changes.until(lambda: runs(0) and runs(1) and world.kubelet.allocatable(names.GPU_MEM) == 30)
    await world.run_pod("a", 4, on=0)
    await world.until_assigned("a")
    label(world, "mps", **PAUSED)
    await world.changes.until(lambda: not runs(1))
    assert runs(0)
    label(world, "mps")
    await world.changes.until(lambda: runs(1))
