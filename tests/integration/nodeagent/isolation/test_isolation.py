"""Containers of isolated nodes: what is mounted into them, and what remains of them."""

import asyncio
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from gpushare.api import names
from gpushare.kubeletapi.deviceplugin_pb2 import Empty
from gpushare.nodeagent.isolation.backends import mps
from gpushare.nodeagent.isolation.options import Watch
from gpushare.nodeagent.isolation.storage.allowance_file import read_allowance
from gpushare.nodeagent.isolation.storage.directories import USAGE_BYTES, Directories
from gpushare.nodeagent.isolation.storage.files import Claimed
from gpushare.nodeagent.runtime.cdi.spec_dirs import ISOLATED_FILE
from gpushare.nodeagent.runtime.selection import Asked
from tests.integration.nodeagent.cluster_objects import NODE, container, node, pod
from tests.integration.nodeagent.conftest import World
from tests.integration.nodeagent.isolation.isolating import (
    LIBRARIES,
    SHIMS,
    active,
    describe,
    directories,
    install,
    mounted,
    without_driver,
)
from tests.integration.nodeagent.scripted_kubelet import AdmissionFailed
from tests.integration.nodeagent.scripted_nvml import gpu


async def test_a_container_gets_its_limits_and_our_libraries_in_every_program(world: World) -> None:
    install(world)
    await world.start(mode="core_mem")
    labels = {names.LABEL_POD_COMPUTE_CLASS: "latency"}
    admitted = await world.kubelet.admit(world.bind("a", container("c", 3, 30), on=1, labels=labels))
    found = mounted(admitted)
    limits, read_only = found["/run/gpushare/limits"]
    assert read_only
    uid = admitted.pod["metadata"]["uid"]
    assert limits.read_text() == (
        f"gpushare-limits 1.2\ncontainer default/a/c {uid}\n"
        f"gpu {gpu(1).uuid} memory_bytes={3 * 1024 << 20} core_percent=30 core_policy=hard core_class=latency\n"
    )
    usage, read_only = found["/run/gpushare/usage"]
    assert not read_only
    assert (usage.stat().st_size, usage.stat().st_mode & 0o777) == (USAGE_BYTES, 0o666)
    for name in SHIMS:
        ours, read_only = found[f"/run/gpushare/lib/{name}"]
        assert read_only
        assert ours.read_text() == f"{name} of image"
        real, _ = found[f"/run/gpushare/driver/{name.removesuffix('.1')}"]
        assert real.read_text() == f"{name} of lib64"
    preload, read_only = found["/etc/ld.so.preload"]
    assert read_only
    assert preload.read_text().split() == [f"/run/gpushare/lib/{name}" for name in LIBRARIES]
    assert preload.parent.parent == world.settings.isolation.folder.parent / "lib"
    assert world.agent.metrics.isolation.value("preload", "auto") == 1.0
    await world.changes.until(
        lambda: active(world).startswith("preload (by /etc/ld.so.preload): mode core_mem")
    )
    assert "arbiter is missing, so each container limits its own compute" in active(world)


def limited(world: World, name: str, units: int, limit: str) -> dict[str, Any]:
    """A pod whose container may use more than it requests."""
    made = pod(name, container("c", units))
    made["metadata"]["annotations"][names.ANN_GPU_MEMORY_LIMIT] = limit
    world.decide(made, 0)
    world.api.put_pod(made)
    return made


async def test_a_burstable_container_gets_its_allowance_as_a_file_that_changes(world: World) -> None:
    install(world)
    await world.start(mode="cgpu")
    limit, total_mib = "40Gi", gpu(0).total_mib
    found = mounted(await world.kubelet.admit(limited(world, "bursting", 3, limit)))
    allowance, read_only = found["/run/gpushare/allowance"]
    assert read_only
    assert allowance.parent == found["/run/gpushare/limits"][0].parent
    assert (
        found["/run/gpushare/limits"][0].read_text().endswith(f"memory_bytes={3 * 1024 << 20}\nallowance\n")
    )
    await world.changes.until(lambda: read_allowance(allowance.parent, 1) == [total_mib], "it may use all")
    await world.run_pod("next", 4, on=0)
    assert read_allowance(allowance.parent, 1) == [total_mib - 4 * 1024]


@pytest.mark.parametrize("mode", ["share", "cgpu"])
async def test_memory_above_the_request_that_is_unavailable_is_reported_on_the_pod(
    world: World, mode: str
) -> None:
    install(world, watch=Watch("off"))
    await world.start(mode=mode)
    found = mounted(await world.kubelet.admit(limited(world, "bursting", 3, "6Gi")))
    assert "/run/gpushare/allowance" not in found
    await world.changes.until(lambda: world.api.reported("GPUMemoryLimitIgnored"), "reported")
    [event] = world.api.reported("GPUMemoryLimitIgnored")
    assert event["note"].startswith(
        f"annotation {names.ANN_GPU_MEMORY_LIMIT} has no effect on node {NODE}: in mode {mode} its"
    )


async def test_an_mps_node_reports_its_backend_in_annotation_metrics_and_log(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    daemon = world.folder / "host" / "usr" / "bin" / mps.CONTROL
    daemon.parent.mkdir(parents=True)
    daemon.write_text("#!/bin/sh\nexec sleep 1000\n")
    daemon.chmod(0o755)
    install(world)
    # The program is found below the host's root, which is no whole system here, and ends with the test.
    monkeypatch.setattr(mps, "_FOLDERS", (str(daemon.parent).lstrip("/"),))
    monkeypatch.setattr(mps, "outlives_us", lambda: False)
    await world.start(mode="mps")
    await world.changes.until(lambda: active(world) == "mps: mode mps", "annotated")
    values = {one: world.agent.metrics.isolation.value(one, "auto") for one in ("none", "preload", "mps")}
    assert values == {"none": 0.0, "preload": 0.0, "mps": 1.0}
    assert "limits are enforced by: mps: mode mps" in caplog.text


async def test_with_cdi_our_libraries_replace_the_drivers(world: World) -> None:
    install(world)
    describe(world)
    made = node("cgpu")
    made["status"]["nodeInfo"] = {
        "containerRuntimeVersion": "containerd://2.4.2",
        "kubeletVersion": "v1.36.3",
    }
    world.api.put("nodes", NODE, made)
    await world.start(mode="cgpu")
    await world.changes.until(lambda: "by CDI" in active(world), "in place")
    admitted = await world.run_pod("a", 3, on=0)
    assert set(mounted(admitted)) == {"/run/gpushare/limits", "/run/gpushare/usage"}
    assert [one.name for one in admitted.answers["c"].cdi_devices] == [f"gpushare.dev/isolated={gpu(0).uuid}"]
    described = json.loads((world.settings.cdi_folders[-1] / ISOLATED_FILE).read_text())
    paths = {one["containerPath"]: one["hostPath"] for one in described["containerEdits"]["mounts"]}
    assert any(
        one.joinpath("libcuda.so.1") == Path(paths["/usr/lib64/libcuda.so.535"])
        for one in (world.settings.isolation.folder.parent / "lib").iterdir()
    )
    assert paths["/run/gpushare/driver/libcuda.so"] == "/usr/lib64/libcuda.so.535"


async def test_with_cdi_the_driver_is_at_the_described_path(world: World) -> None:
    install(world)
    describe(world)
    without_driver(world)
    made = node("cgpu")
    made["status"]["nodeInfo"] = {
        "containerRuntimeVersion": "containerd://2.4.2",
        "kubeletVersion": "v1.36.3",
    }
    world.api.put("nodes", NODE, made)
    await world.start(mode="cgpu")
    untried = "could not be tested on this node's driver (the driver's libraries are not found"
    await world.changes.until(lambda: untried in active(world), "it says so")
    assert active(world).startswith("preload (in place of the driver's libraries, by CDI): mode cgpu")
    await world.changes.until(lambda: world.kubelet.allocatable(names.GPU_MEM) == 30, "offered")
    admitted = await world.run_pod("a", 3, on=0)
    assert [one.name for one in admitted.answers["c"].cdi_devices] == [f"gpushare.dev/isolated={gpu(0).uuid}"]


@pytest.mark.parametrize("mode", ["share", "cgpu"])
async def test_by_default_nothing_is_isolated_and_the_node_reports_it(world: World, mode: str) -> None:
    await world.start(mode=mode)
    assert not mounted(await world.run_pod("a", 3, on=0))
    await world.changes.until(lambda: active(world).startswith("none: "))
    assert ("--isolation none disables it" in active(world)) is (mode == "cgpu")
    assert not world.settings.isolation.folder.exists()


async def test_a_restarted_agent_takes_over_existing_container_directories(world: World) -> None:
    install(world)
    await world.start(mode="cgpu")
    container_folder = mounted(await world.run_pod("a", 3, on=0))["/run/gpushare/limits"][0].parent
    await world.run_pod("b", 3, on=1)
    await world.stop()
    # Leftovers of a killed agent, and a pod that ended meanwhile.
    (world.settings.isolation.folder / ".new-1").mkdir()
    (world.settings.isolation.folder / ".gone-1").mkdir()
    world.end_pod("b")
    await world.start(mode="cgpu")
    await world.changes.until(
        lambda: [one.name for one in world.settings.isolation.folder.iterdir()] == [container_folder.name],
        "only what is used is left",
    )
    await world.changes.until(lambda: world.agent.metrics.isolated_containers.value() == 1.0)


async def test_directories_made_by_a_concurrent_agent_are_kept_and_removed_as_well(world: World) -> None:
    install(world)
    await world.start(mode="cgpu")
    await world.run_pod("a", 3, on=0)
    other = Directories(world.settings.isolation.folder)
    made = other.make(Claimed("default/gone", "unknown", "c", gpu(0).uuid, 1, "0"), "hard")
    await world.changes.until(lambda: not made.exists(), "removed")
    assert len(directories(world)) == 1


async def test_lost_files_are_recreated_while_a_pod_uses_them(world: World) -> None:
    install(world)
    await world.start(mode="core_mem")
    found = mounted(await world.run_pod("a", 3, on=0, core=30))
    limits, usage = found["/run/gpushare/limits"][0], found["/run/gpushare/usage"][0]
    libraries = found["/etc/ld.so.preload"][0].parent
    before = limits.read_bytes()
    for lost in (world.settings.isolation.folder, libraries):
        # At once: the agent looks meanwhile, and would put files back into what is being removed.
        shutil.rmtree(lost.rename(world.folder / "lost"))
    await world.changes.until(
        lambda: limits.is_file() and usage.is_file() and (libraries / "libcuda.so.1").is_file(),
        "recreated",
    )
    assert limits.read_bytes() == before
    assert usage.stat().st_size == USAGE_BYTES
    (libraries / "libnvidia-ml.so.1").unlink()
    limits.unlink()
    await world.changes.until(
        lambda: limits.is_file() and (libraries / "libnvidia-ml.so.1").is_file(), "a part"
    )
    assert limits.read_bytes() == before
    assert len(directories(world)) == 1
    # Not for a pod that has gone.
    world.end_pod("a")
    await world.changes.until(lambda: not directories(world), "removed")


async def test_a_container_that_extends_its_usage_file_is_reported_also_without_the_watchdog(
    world: World,
) -> None:
    install(world, watch=Watch("off"))
    await world.start(mode="cgpu")
    usage, _ = mounted(await world.run_pod("a", 3, on=0))["/run/gpushare/usage"]
    for _ in range(2):
        with usage.open("r+b") as file:
            file.seek(1 << 20)
            file.write(bytes(20 << 20))
        await world.changes.until(lambda: usage.stat().st_size == USAGE_BYTES, "truncated")
    await world.changes.until(lambda: world.api.reported("IsolationFileTampered"), "reported")
    (event,) = world.api.reported("IsolationFileTampered")
    assert (event["regarding"]["name"], event["type"]) == ("a", "Warning")
    assert "container c extended /run/gpushare/usage" in event["note"]


async def test_an_agent_that_leaves_for_good_takes_with_it_what_no_pod_uses(world: World) -> None:
    install(world)
    root = world.settings.isolation.folder.parent
    await world.start(mode="cgpu")
    await world.run_pod("a", 3, on=0)
    agent = world.agent
    await agent._isolation.clear()
    assert len(directories(world)) == 1
    await world.stop()
    await world.start(mode="cgpu")
    world.end_pod("a")
    await world.changes.until(lambda: not directories(world), "removed")
    agent = world.agent
    assert agent._isolation.there
    await agent._isolation.clear()
    assert not root.exists()
    assert not agent._isolation.there


async def test_nothing_is_taken_away_while_the_kubelet_does_not_say_who_has_what(world: World) -> None:
    install(world)
    await world.start(mode="cgpu")
    await world.run_pod("a", 3, on=0)
    world.kubelet.listing_works = False
    world.api.drop("pods", "default/a")
    world.kubelet.calls.clear()
    await world.run_pod("b", 3, on=1)
    assert len(directories(world)) == 2
    world.kubelet.remove("default/a")
    world.kubelet.listing_works = True
    await world.changes.until(lambda: len(directories(world)) == 1, "removed")


async def test_a_new_release_is_delivered_and_the_old_one_goes_with_its_last_container(world: World) -> None:
    install(world)
    await world.start(mode="cgpu")
    old = mounted(await world.run_pod("a", 3, on=0))["/etc/ld.so.preload"][0].parent
    (world.folder / "image" / "new").write_text("the next release")
    (world.folder / "image" / "new").replace(world.folder / "image" / "libcuda.so.1")
    state = world.agent._isolation
    await world.changes.until(lambda: state._readiness.ready().release.folder != old, "delivered")
    new = mounted(await world.run_pod("b", 3, on=0))["/etc/ld.so.preload"][0].parent
    assert new != old
    assert old.is_dir()
    world.end_pod("a")
    await world.changes.until(lambda: not old.exists(), "removed")
    assert new.is_dir()


async def test_of_a_cancelled_allocation_and_its_repetition_the_containers_own_directory_is_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(world)
    await world.start(mode="core_mem")
    make, released, calls = Directories.make, threading.Event(), 0

    def slow(*args: Any) -> Path:
        nonlocal calls
        calls += 1
        world.changes.notify()
        released.wait(30.0)
        return make(*args)

    monkeypatch.setattr(Directories, "make", slow)
    world.kubelet.pick = lambda _, free, amount: sorted(free)[:amount]
    made = world.bind("a", container("c", 3, 30), on=0)
    cancelled = asyncio.create_task(world.kubelet.admit(made))
    await world.changes.until(lambda: calls == 1, "its directory is being made")
    cancelled.cancel()
    await asyncio.wait([cancelled])
    again = asyncio.create_task(world.kubelet.admit(made))
    for _ in range(5):  # the agent takes the cancellation and the repetition
        await world.kubelet.endpoints[names.GPU_MEM].stub.GetDevicePluginOptions(Empty())
    assert calls == 1, "the repetition waits"
    released.set()
    own = mounted(await again)["/run/gpushare/limits"][0].parent
    await world.changes.until(lambda: set(directories(world)) == {own.name}, "the other one is removed")


async def test_a_gpu_holds_no_more_isolated_pods_than_can_be_held_apart(world: World) -> None:
    install(world, pods_per_gpu=2)
    await world.start(mode="cgpu")
    await world.run_pod("a", 1, on=0)
    await world.run_pod("b", 1, on=0)
    with pytest.raises(AdmissionFailed, match="GPU 0 has 2 isolated pods, the maximum"):
        await world.run_pod("c", 1, on=0)
    world.end_pod("a")
    world.api.drop("pods", "default/c")
    await world.changes.until(lambda: len(directories(world)) == 1, "the end of a is seen")
    await world.run_pod("d", 1, on=0)


async def test_pods_of_before_a_change_of_mode_keep_what_they_have(world: World) -> None:
    install(world)
    await world.start(mode="cgpu")
    await world.run_pod("a", 3, on=0)
    world.api.label_node(NODE, {names.LABEL_MODE: "share"})
    await world.changes.until(lambda: active(world).startswith("none: mode share"))
    assert not mounted(await world.run_pod("b", 3, on=0))
    assert len(directories(world)) == 1
    world.api.label_node(NODE, {names.LABEL_MODE: "cgpu"})
    await world.changes.until(lambda: active(world).startswith("preload"))
    assert mounted(await world.run_pod("c", 3, on=0))


async def test_where_no_link_leads_out_of_the_host_paths_are_those_of_the_host(world: World) -> None:
    install(world)
    world.use(host_root=world.folder / "driver", container_runtime=Asked.NVIDIA)
    await world.start(mode="cgpu")
    found = mounted(await world.run_pod("a", 3, on=0))
    assert str(found["/run/gpushare/driver/libcuda.so"][0]) == "/usr/lib64/libcuda.so.1"
