"""Nodes that cannot hold containers to their share: what they offer, and what they report."""

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpushare.api import names
from gpushare.nodeagent.isolation.backends import preload_readiness
from gpushare.nodeagent.isolation.backends.preload import NoDriver, driver_on_host
from gpushare.nodeagent.isolation.options import AskedIsolation
from gpushare.nodeagent.isolation.selftest import selftest
from gpushare.nodeagent.runtime.selection import Asked
from tests.integration.nodeagent.cluster_objects import NODE, container, node
from tests.integration.nodeagent.conftest import World
from tests.integration.nodeagent.isolation.isolating import (
    active,
    describe,
    install,
    mounted,
    without_driver,
    without_folder,
    without_library,
)
from tests.integration.nodeagent.scripted_kubelet import AdmissionFailed


@pytest.mark.parametrize("breaking", [without_library, without_driver, without_folder])
async def test_with_isolation_auto_a_node_without_isolation_gives_shares_and_reports_it(
    world: World, breaking: Any
) -> None:
    install(world)
    why = breaking(world)
    await world.start(mode="core_mem")
    await world.changes.until(lambda: world.api.reported("IsolationUnavailable"), "reported")
    note = world.api.reported("IsolationUnavailable")[0]["note"]
    assert why in note
    assert "limits are not enforced" in note
    await world.changes.until(lambda: world.kubelet.allocatable(names.GPU_MEM) == 30, "offered")
    assert not mounted(await world.run_pod("a", 3, on=0, core=30))
    agent = world.agent
    assert agent.missing() == []
    assert agent.metrics.degraded.value("IsolationUnavailable") == 1.0
    assert agent.metrics.isolation.value("none", "auto") == 1.0
    assert agent.metrics.isolation.value("preload", "auto") == 0.0
    await world.changes.until(
        lambda: (
            active(world).startswith("none: mode core_mem asks for isolation, and this node cannot")
            and why in active(world)
        ),
        "annotated",
    )
    # It recovers, for new pods.
    if breaking is without_folder:
        world.settings.isolation.folder.unlink()
    install(world)
    await world.changes.until(lambda: world.api.reported("IsolationAvailable"), "reported")
    assert "/run/gpushare/limits" in mounted(await world.run_pod("b", 3, on=0))
    assert agent.metrics.degraded.value("IsolationUnavailable") == 0.0


async def test_libraries_that_selinux_blocks_are_mounted_into_no_container(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    install(world)
    enforced = True
    monkeypatch.setattr(preload_readiness, "is_enforced", lambda host_root: enforced)
    monkeypatch.setattr(os, "setxattr", refused)
    await world.start(mode="cgpu")
    await world.changes.until(lambda: world.api.reported("IsolationUnavailable"), "reported")
    assert "SELinux is enforced" in world.api.reported("IsolationUnavailable")[0]["note"]
    assert not mounted(await world.run_pod("a", 3, on=0))
    enforced = False
    await world.changes.until(lambda: world.api.reported("IsolationAvailable"), "reported")


async def test_a_node_that_could_isolate_before_offers_nothing_instead_of_unenforced_shares(
    world: World,
) -> None:
    install(world)
    await world.start(mode="cgpu")
    assert "/run/gpushare/limits" in mounted(await world.run_pod("a", 3, on=0))
    without_library(world)
    await world.changes.until(lambda: world.api.reported("IsolationUnavailable"), "reported")
    assert "so the node offers no GPU" in world.api.reported("IsolationUnavailable")[0]["note"]
    await world.changes.until(lambda: world.kubelet.allocatable(names.GPU_MEM) == 0, "nothing is offered")
    # The next agent finds that containers were held here, and does not stop isolating either.
    await world.stop()
    await world.start(mode="cgpu")
    await world.changes.until(lambda: active(world).startswith("preload"), "not none")
    assert world.kubelet.allocatable(names.GPU_MEM) == 0


@pytest.mark.parametrize("isolation", [AskedIsolation.AUTO, AskedIsolation.PRELOAD])
async def test_libraries_that_fail_with_the_driver_are_mounted_into_no_container(
    world: World, monkeypatch: pytest.MonkeyPatch, isolation: AskedIsolation
) -> None:
    async def breaks(*_: Any) -> selftest.Verdict:
        return selftest.Verdict("failed", "cuInit returns 999 with the libraries, and 0 without them")

    monkeypatch.setattr(selftest, "try_libraries", breaks)
    install(world, asked=isolation)
    await world.start(mode="cgpu")
    await world.changes.until(lambda: world.api.reported("IsolationUnavailable"), "reported")
    note = world.api.reported("IsolationUnavailable")[0]["note"]
    assert (
        "do not work with this node's driver: cuInit returns 999 with the libraries, and 0 without them"
        in note
    )
    assert world.agent.metrics.selftest.value("failed") == 1.0
    if isolation is AskedIsolation.AUTO:
        assert not mounted(await world.run_pod("a", 3, on=0))
        await world.changes.until(lambda: "none: mode cgpu" in active(world), "annotated")
    else:
        assert world.kubelet.allocatable(names.GPU_MEM) == 0
        assert "do not work with" in world.agent.missing()[0]


@pytest.mark.parametrize("breaking", [without_library, without_driver, without_folder])
@pytest.mark.parametrize("mode", ["cgpu", "core_mem"])
async def test_a_node_whose_configured_backend_is_unavailable_offers_nothing_and_reports_why(
    world: World, breaking: Any, mode: str
) -> None:
    install(world, asked=AskedIsolation.PRELOAD)
    why = breaking(world)
    await world.start(mode=mode)
    await world.changes.until(lambda: world.api.reported("IsolationUnavailable"), "reported")
    note = world.api.reported("IsolationUnavailable")[0]["note"]
    assert why in note
    assert f"Isolation is required in mode {mode}" in note
    assert (world.kubelet.allocatable(names.GPU_MEM), world.kubelet.capacity(names.GPU_MEM)) == (0, 30)
    agent = world.agent
    assert why in agent.missing()[0]
    assert agent.metrics.degraded.value("IsolationUnavailable") == 1.0
    await world.changes.until(lambda: why in active(world), "annotated")
    with pytest.raises(AdmissionFailed):
        await world.kubelet.admit(world.bind("a", container("c", 3), on=0))
    # It recovers.
    if breaking is without_folder:
        world.settings.isolation.folder.unlink()
    install(world, asked=AskedIsolation.PRELOAD)
    await world.changes.until(lambda: world.kubelet.allocatable(names.GPU_MEM) == 30, "offered")
    await world.changes.until(lambda: world.api.reported("IsolationAvailable"), "reported")
    assert len(world.api.reported("IsolationUnavailable")) == 1
    assert agent.missing() == []
    assert "/run/gpushare/limits" in mounted(await world.run_pod("b", 3, on=0))


@pytest.mark.parametrize("runtime", [Asked.AUTO, Asked.CDI])
async def test_a_driver_removed_file_by_file_is_reported_and_blocks_no_rollout(
    world: World, monkeypatch: pytest.MonkeyPatch, runtime: Asked
) -> None:
    missed: list[NoDriver] = []

    def looked(*roots: Path) -> dict[str, str]:
        try:
            return driver_on_host(*roots)
        except NoDriver as error:
            missed.append(error)
            raise

    monkeypatch.setattr(preload_readiness, "driver_on_host", looked)
    install(world)
    describe(world)
    world.use(container_runtime=runtime)
    made = node("cgpu")
    made["status"]["nodeInfo"] = {
        "containerRuntimeVersion": "containerd://2.4.2",
        "kubeletVersion": "v1.36.3",
    }
    world.api.put("nodes", NODE, made)
    await world.start(mode="cgpu")
    await world.changes.until(lambda: "by CDI" in active(world), "in place")
    agent = world.agent
    # The description goes first, and is missed before the libraries are.
    (world.settings.cdi_folders[0] / "nvidia.json").unlink()
    await world.changes.until(
        lambda: world.api.reported("CDIUnavailable") or "/etc/ld.so.preload" in active(world), "it is missed"
    )
    without_driver(world)
    world.nvml.driver, world.nvml.exchanged = False, True
    await world.changes.until(lambda: world.api.reported("DriverNotFound"), "reported")
    missed.clear()
    await world.changes.until(lambda: len(missed) > 2, "the libraries are missed")
    await world.changes.until(lambda: agent.missing() == [], "the pod is ready")
    await world.changes.until(lambda: world.kubelet.allocatable(names.GPU_MEM) == 0, "nothing is offered")
    install(world)
    world.use(container_runtime=runtime)
    describe(world)
    world.nvml.driver = True
    await world.changes.until(lambda: world.kubelet.allocatable(names.GPU_MEM) == 30, "offered")
    await world.changes.until(lambda: "by CDI" in active(world), "in place")


async def test_a_share_node_needs_no_isolation(world: World) -> None:
    install(world)
    without_library(world)
    await world.start(mode="share")
    assert not mounted(await world.run_pod("a", 3, on=0))
    assert not world.api.reported("IsolationUnavailable")


async def test_a_folder_that_breaks_later_refuses_the_container(world: World) -> None:
    install(world)
    world.use(pace=replace(world.settings.pace, isolation_s=1000.0))
    await world.start(mode="cgpu")
    folder = world.settings.isolation.folder
    folder.rmdir()
    folder.write_text("a file where the folder should be")
    with pytest.raises(AdmissionFailed, match="the container would not be limited to its share"):
        await world.run_pod("a", 3, on=0)
    folder.unlink()


async def test_a_disk_that_has_become_full_takes_the_node_out_of_service(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    install(world)
    await world.start(mode="cgpu")
    await world.run_pod("a", 3, on=0)
    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        with pytest.raises(AdmissionFailed, match="No space left on device"):
            await world.run_pod("b", 3, on=0)
        await world.changes.until(lambda: world.api.reported("IsolationUnavailable"), "reported")
        assert "No space left on device" in world.api.reported("IsolationUnavailable")[0]["note"]
        await world.changes.until(lambda: world.kubelet.allocatable(names.GPU_MEM) == 0, "nothing is offered")
    await world.changes.until(lambda: world.kubelet.allocatable(names.GPU_MEM) == 30, "it is offered again")
