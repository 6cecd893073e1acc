"""The driver's own limits, as the agent sets them on the cgroups of containers; the driver is scripted."""

import shutil
from dataclasses import replace

import pynvml
import pytest

from gpushare.api import names
from gpushare.nodeagent.isolation.options import AskedIsolation, WatchPolicy
from tests.integration.nodeagent.cluster_objects import container
from tests.integration.nodeagent.conftest import World
from tests.integration.nodeagent.isolation.isolating import active, install, mounted
from tests.integration.nodeagent.isolation.limited import (
    CONTAINER,
    cgroup_of,
    directory_of,
    report_containers,
    run_process,
    with_cgroups,
)
from tests.integration.nodeagent.scripted_kubelet import Admitted
from tests.integration.nodeagent.scripted_nvml import gpu

MIB = 1 << 20
BEHIND = "; backed by the driver's own limits): mode "


def offer(world: World) -> None:
    world.nvml.no_limits = ""


def driver_alone(world: World) -> None:
    """A node that is configured for the driver's limits, and has them."""
    install(world, asked=AskedIsolation.DRIVER)
    with_cgroups(world)
    offer(world)


def limit(world: World, admitted: Admitted, on: int = 0) -> int | None:
    return world.nvml.limits.get((gpu(on).uuid, directory_of(world, admitted)))


async def limited(world: World, admitted: Admitted, mib: int, on: int = 0) -> None:
    await world.changes.until(lambda: limit(world, admitted, on) == mib * MIB, f"{mib} MiB")


async def run_in_cgroup(world: World, name: str, units: int, on: int, pid: int) -> Admitted:
    admitted = await world.run_pod(name, units, on=on)
    run_process(world, pid, cgroup_of(admitted))
    report_containers(world, name, c=CONTAINER)
    return admitted


async def looked(world: World) -> None:
    """Wait until a reconciliation has started and ended from now on."""
    calls = [0]
    can_limit = world.nvml.can_limit

    def counting(root: str) -> object:
        calls[0] += 1
        return can_limit(root)

    world.nvml.can_limit = counting  # type: ignore[method-assign,assignment]
    await world.changes.until(lambda: calls[0] >= 2, "looked")
    world.nvml.can_limit = can_limit  # type: ignore[method-assign]


async def test_each_container_is_limited_by_the_libraries_and_by_the_driver(world: World) -> None:
    install(world)
    with_cgroups(world)
    offer(world)
    await world.start(mode="cgpu")
    a = await run_in_cgroup(world, "a", 2, 0, 41)
    b = await run_in_cgroup(world, "b", 4, 1, 42)
    assert "/run/gpushare/limits" in mounted(a)
    await limited(world, a, 2048)
    await limited(world, b, 4096, on=1)
    assert set(world.nvml.limits) == {
        (gpu(0).uuid, directory_of(world, a)),
        (gpu(1).uuid, directory_of(world, b)),
    }
    await world.changes.until(lambda: BEHIND in active(world), "annotated")
    assert active(world).startswith("preload (")
    agent = world.agent
    metrics = agent.metrics
    assert (metrics.isolation.value("preload", "auto"), metrics.isolation.value("driver", "auto")) == (
        1.0,
        1.0,
    )
    await world.changes.until(
        lambda: metrics.driver_limit_bytes.value("default", "a", "c", gpu(0).uuid) == 2048 << 20
    )
    # Limits that are set are not set again, also not by the next agent.
    await looked(world)
    assert len(world.nvml.set_limits) == 2
    await world.stop()
    await world.start(mode="cgpu")
    await looked(world)
    assert len(world.nvml.set_limits) == 2


async def test_a_starting_process_is_limited_immediately(world: World) -> None:
    driver_alone(world)
    world.use(pace=replace(world.settings.pace, watch_s=3600.0))
    await world.start(mode="cgpu")
    a = await run_in_cgroup(world, "a", 2, 0, 41)
    b = await run_in_cgroup(world, "b", 4, 1, 42)
    await limited(world, a, 2048)
    await limited(world, b, 4096, on=1)


async def test_a_limit_rounded_by_the_driver_is_set_once(world: World) -> None:
    driver_alone(world)
    world.nvml.rounds_to = 3 << 30
    await world.start(mode="cgpu")
    a = await run_in_cgroup(world, "a", 2, 0, 41)
    await limited(world, a, 3072)
    await looked(world)
    assert len(world.nvml.set_limits) == 1


async def test_the_driver_alone_limits_containers_without_libraries(world: World) -> None:
    driver_alone(world)
    await world.start(mode="core_mem")
    a = await world.kubelet.admit(world.bind("a", container("c", 3, 30), on=0))
    assert not mounted(a)
    run_process(world, 41, cgroup_of(a))
    report_containers(world, "a", c=CONTAINER)
    await limited(world, a, 3072)
    await world.changes.until(
        lambda: (
            active(world) == "driver (memory only, by cgroup): mode core_mem, and --isolation driver is set"
        ),
        "annotated",
    )
    agent = world.agent
    assert agent.missing() == []
    assert agent.metrics.isolation.value("driver", "driver") == 1.0
    assert not world.api.reported("IsolationUnavailable")


async def test_only_containers_with_a_share_are_limited_in_their_own_cgroups(world: World) -> None:
    driver_alone(world)
    await world.start(mode="cgpu")
    ids = {name: digit * 64 for name, digit in (("c", "1"), ("d", "2"), ("side", "3"))}
    made = world.bind("a", container("c", 1), container("d", 2), {"name": "side"}, on=0)
    a = await world.kubelet.admit(made)
    for pid, one in enumerate((*ids.values(), "4" * 64), 41):  # the last is the pod's sandbox
        run_process(world, pid, cgroup_of(a, one))
    run_process(world, 50, f"{cgroup_of(a, ids['c'])}/inner.service")
    run_process(world, 51, "/system.slice/sshd.service")
    await looked(world)
    assert not world.nvml.limits  # until the kubelet reports which is which
    report_containers(world, "a", **ids)
    await world.changes.until(lambda: len(world.nvml.limits) == 2, "limited")
    await looked(world)
    assert world.nvml.limits == {
        (gpu(0).uuid, directory_of(world, a, ids["c"])): 1024 * MIB,
        (gpu(0).uuid, directory_of(world, a, ids["d"])): 2048 * MIB,
    }


async def test_a_limit_refused_by_the_driver_is_one_event_on_the_pod_and_counted(world: World) -> None:
    driver_alone(world)
    await world.start(mode="cgpu")
    a = await world.run_pod("a", 2, on=0)
    where = directory_of(world, a)
    world.nvml.refused[where] = "Operating System call failed"
    run_process(world, 41, cgroup_of(a))
    report_containers(world, "a", c=CONTAINER)
    await world.changes.until(lambda: world.api.reported("FailedSettingGPULimit"), "reported")
    await looked(world)
    [event] = world.api.reported("FailedSettingGPULimit")
    assert event["note"] == (
        "container c: the driver's memory limit of 2048 MiB could not be set on GPU 0: Operating System call failed "
        f"({where})"
    )
    assert (event["regarding"]["kind"], event["regarding"]["name"]) == ("Pod", "a")
    agent = world.agent
    assert agent.metrics.driver_limit_failures.value() == 1.0
    assert agent.metrics.driver_limit_bytes.value("default", "a", "c", gpu(0).uuid) == 0.0
    world.nvml.refused.clear()
    await limited(world, a, 2048)


async def test_broken_gpus_and_ended_containers_are_not_reported_as_refused_limits(world: World) -> None:
    driver_alone(world)
    await world.start(mode="cgpu")
    a = await world.run_pod("a", 2, on=0)
    where = directory_of(world, a)
    world.nvml.refused[where] = "GPU is lost"
    world.nvml.refused_with = pynvml.NVML_ERROR_GPU_IS_LOST
    tried: list[str] = []
    world.nvml.on_limits = tried.append
    run_process(world, 41, cgroup_of(a))
    report_containers(world, "a", c=CONTAINER)
    await world.changes.until(lambda: where in tried, "tried")
    await looked(world)

    def ends(cgroup: str) -> None:
        shutil.rmtree(cgroup, ignore_errors=True)
        world.nvml.refused_with = pynvml.NVML_ERROR_OPERATING_SYSTEM

    world.nvml.on_limits = ends
    await world.changes.until(
        lambda: world.nvml.refused_with == pynvml.NVML_ERROR_OPERATING_SYSTEM, "it ends while it is limited"
    )
    await looked(world)
    agent = world.agent
    assert agent.metrics.driver_limit_failures.value() == 0.0
    assert agent.metrics.driver_limit_bytes.value("default", "a", "c", gpu(0).uuid) == 0.0


@pytest.mark.parametrize("lacking", ["older driver", "cgroup v1"])
async def test_a_node_set_to_driver_limits_without_any_offers_nothing_and_reports_why(
    world: World, lacking: str
) -> None:
    install(world, asked=AskedIsolation.DRIVER)
    root = with_cgroups(world, version=1 if lacking == "cgroup v1" else 2)
    if lacking == "cgroup v1":
        offer(world)
    why = f"{root} has no cgroups of version 2" if lacking == "cgroup v1" else world.nvml.no_limits
    await world.start(mode="cgpu")
    await world.changes.until(lambda: world.api.reported("IsolationUnavailable"), "reported")
    assert why in world.api.reported("IsolationUnavailable")[0]["note"]
    assert (world.kubelet.allocatable(names.GPU_MEM), world.kubelet.capacity(names.GPU_MEM)) == (0, 30)
    assert why in world.agent.missing()[0]
    await world.changes.until(lambda: why in active(world), "annotated")
    offer(world)
    (root / "cgroup.controllers").touch()
    await world.changes.until(lambda: world.kubelet.allocatable(names.GPU_MEM) == 30, "offered")
    await world.changes.until(lambda: world.api.reported("IsolationAvailable"), "reported")


@pytest.mark.parametrize(
    ("mode", "isolation", "policy"),
    [
        ("share", AskedIsolation.AUTO, "report"),
        ("mps", AskedIsolation.MPS, "report"),
        ("cgpu", AskedIsolation.NONE, "report"),
        ("cgpu", AskedIsolation.AUTO, "off"),
    ],
)
async def test_no_driver_limit_is_set_with_another_isolation_or_none(
    world: World, mode: str, isolation: AskedIsolation, policy: WatchPolicy
) -> None:
    install(world, asked=isolation)
    mps = world.folder / "usr" / "bin" / "nvidia-cuda-mps-control"
    mps.parent.mkdir(parents=True)
    mps.write_text("#!/bin/sh\nexec cat\n")
    mps.chmod(0o755)
    with_cgroups(world, policy)
    offer(world)
    world.use(host_root=world.folder)
    await world.start(mode=mode)
    made = world.bind("a", container("c", 2), on=0)
    report_containers(world, "a", c=CONTAINER)
    path = f"/kubepods/burstable/pod{made['metadata']['uid']}/{CONTAINER}"
    run_process(world, 41, path)
    if isolation is AskedIsolation.NONE or policy == "off":
        assert BEHIND not in active(world)
    else:
        await looked(world)
    assert not world.nvml.set_limits
