"""Containers that get their GPU by CDI, and nodes where that is impossible."""

import asyncio
import errno
import itertools
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from gpushare.api import names
from gpushare.nodeagent.runtime.cdi.gpu_access import ANNOTATION
from gpushare.nodeagent.runtime.cdi.spec_dirs import OUR_FILE, CdiFolders
from gpushare.nodeagent.runtime.selection import Asked
from tests.integration.nodeagent.cluster_objects import NODE, container, node
from tests.integration.nodeagent.conftest import World
from tests.integration.nodeagent.scripted_kubelet import AdmissionFailed
from tests.integration.nodeagent.scripted_nvml import gpu

CONTAINERD = {"containerRuntimeVersion": "containerd://2.4.2", "kubeletVersion": "v1.36.3"}


def describe(world: World, *indices: int) -> None:
    """NVIDIA's toolkit describes these GPUs."""
    folder = world.settings.cdi_folders[0]
    folder.mkdir(exist_ok=True)
    content = {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [
            {"name": str(index), "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{index}"}]}}
            for index in indices
        ],
        "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void"]},
    }
    new = folder / "nvidia.new"
    new.write_text(json.dumps(content))
    new.replace(folder / "nvidia.json")


def ours(world: World) -> Path:
    return world.settings.cdi_folders[-1] / OUR_FILE


def on_containerd(world: World, mode: str = "share", **info: str) -> None:
    made = node(mode)
    made["status"]["nodeInfo"] = CONTAINERD | info
    world.api.put("nodes", NODE, made)


async def test_cdi_is_used_where_the_runtime_supports_it_and_every_gpu_is_described(world: World) -> None:
    describe(world, 0, 1)
    on_containerd(world)
    await world.start()
    content = json.loads(ours(world).read_text())
    assert content["kind"] == "gpushare.dev/gpu"
    assert {one["name"] for one in content["devices"]} == {gpu(0).uuid, gpu(1).uuid}
    assert "NVIDIA_VISIBLE_DEVICES" not in ours(world).read_text()
    admitted = await world.run_pod("a", 3, on=1)
    assert admitted.envs["c"][names.ENV_VISIBLE_DEVICES] == gpu(1).uuid
    assert list(admitted.answers["c"].cdi_devices[0].name.partition("=")) == [
        "gpushare.dev/gpu",
        "=",
        gpu(1).uuid,
    ]
    assert dict(admitted.answers["c"].annotations) == {}
    assert world.agent.metrics.runtime.value("cdi", "auto") == 1.0


async def test_a_kubelet_without_cdi_device_names_gets_the_annotation_as_well(world: World) -> None:
    describe(world, 0, 1)
    on_containerd(world, kubeletVersion="v1.28.15")
    await world.start()
    answer = (await world.run_pod("a", 3, on=0)).answers["c"]
    assert dict(answer.annotations) == {ANNOTATION: f"gpushare.dev/gpu={gpu(0).uuid}"}
    assert len(answer.cdi_devices) == 1


async def test_whole_gpus_come_by_cdi_too(world: World) -> None:
    describe(world, 0, 1)
    on_containerd(world, "topology")
    await world.start(mode="topology")
    limits = {names.GPU_WHOLE: "2"}
    made = world.bind("a", {"name": "c", "resources": {"limits": limits, "requests": limits}}, on=None)
    answer = (await world.kubelet.admit(made)).answers["c"]
    assert {one.name for one in answer.cdi_devices} == {
        f"gpushare.dev/gpu={gpu(0).uuid}",
        f"gpushare.dev/gpu={gpu(1).uuid}",
    }


def with_device_nodes(world: World) -> None:
    """A host that has the driver's device nodes."""
    dev = world.folder / "host" / "dev"
    dev.mkdir(parents=True)
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (dev / name).symlink_to("/dev/null")
    world.use(host_root=world.folder / "host")


@pytest.mark.parametrize("mode", ["share", "topology"])
async def test_by_nvidias_runtime_the_kubelet_passes_the_gpus_device_nodes(world: World, mode: str) -> None:
    """Otherwise ``systemctl daemon-reload`` takes the GPU away from running containers."""
    with_device_nodes(world)
    on_containerd(world, mode, containerRuntimeVersion="containerd://1.7.27")
    await world.start(mode=mode)
    limits = {names.GPU_WHOLE: "1"} if mode == "topology" else {names.GPU_MEM: "3"}
    made = {"name": "c", "resources": {"limits": limits, "requests": limits}}
    admitted = await world.kubelet.admit(world.bind("a", made, on=None if mode == "topology" else 1))
    (uuid,) = admitted.envs["c"][names.ENV_VISIBLE_DEVICES].split(",")
    index = next(number for number in (0, 1) if gpu(number).uuid == uuid)
    nodes = admitted.answers["c"].devices
    assert [node.host_path for node in nodes] == [
        f"/dev/nvidia{index}",
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
    ]
    assert {(node.container_path == node.host_path, node.permissions) for node in nodes} == {(True, "rw")}


async def test_by_cdi_the_description_has_the_device_nodes_and_the_kubelet_passes_none(world: World) -> None:
    with_device_nodes(world)
    describe(world, 0, 1)
    on_containerd(world)
    await world.start()
    admitted = await world.run_pod("a", 3, on=1)
    assert not admitted.answers["c"].devices
    devices = json.loads(ours(world).read_text())["devices"]
    (described,) = (one for one in devices if one["name"] == gpu(1).uuid)
    assert described["containerEdits"]["deviceNodes"] == [{"path": "/dev/nvidia1"}]


async def test_a_description_that_appears_later_and_disappears_is_followed(world: World) -> None:
    on_containerd(world)
    await world.start()
    assert not (await world.run_pod("before", 1, on=0)).answers["c"].cdi_devices
    describe(world, 0, 1)
    agent = world.agent
    # The file is there a moment before containers get names from it.
    await world.changes.until(lambda: agent.metrics.runtime.value("cdi", "auto") == 1.0, "derived")
    assert ours(world).exists()
    assert (await world.run_pod("after", 1, on=0)).answers["c"].cdi_devices
    (world.settings.cdi_folders[0] / "nvidia.json").unlink()
    await world.changes.until(lambda: agent.metrics.runtime.value("nvidia", "auto") == 1.0, "back")
    # Containers with a device name from it may be restarted.
    assert ours(world).exists()


async def test_without_a_description_nothing_is_offered_where_cdi_is_configured(world: World) -> None:
    world.use(container_runtime=Asked.CDI)
    on_containerd(world)
    await world.start(ready=False)
    await world.changes.until(lambda: world.api.reported("CDIUnavailable"), "reported")
    note = world.api.reported("CDIUnavailable")[0]["note"]
    assert "nvidia-ctk cdi generate" in note
    await world.ready()
    assert world.kubelet.allocatable(names.GPU_MEM) == 0
    assert world.kubelet.capacity(names.GPU_MEM) == 30
    agent = world.agent
    assert "no CDI description" in agent.missing()[0]
    assert agent.metrics.degraded.value("CDIUnavailable") == 1.0
    with pytest.raises(AdmissionFailed):
        await world.kubelet.admit(world.bind("a", container("c", 3), on=0))
    describe(world, 0, 1)
    await world.changes.until(lambda: world.kubelet.allocatable(names.GPU_MEM) == 30, "offered")
    await world.changes.until(lambda: world.api.reported("CDIAvailable"), "reported")
    assert agent.missing() == []
    assert (await world.run_pod("b", 3, on=0)).answers["c"].cdi_devices
    assert len(world.api.reported("CDIUnavailable")) == 1


async def test_a_lost_gpu_changes_nothing_for_the_others(world: World) -> None:
    describe(world, 0, 1)
    on_containerd(world)
    await world.start()
    world.nvml.faults[gpu(1).uuid] = "GPU is lost"
    await world.changes.until(lambda: world.kubelet.allocatable(names.GPU_MEM) == 15)
    describe(world, 0)
    await world.changes.until(lambda: gpu(1).uuid not in ours(world).read_text(), "derived again")
    assert (await world.run_pod("a", 3, on=0)).answers["c"].cdi_devices


async def test_our_description_is_removed_once_the_node_shares_nothing_and_no_pod_holds_a_share(
    world: World,
) -> None:
    describe(world, 0, 1)
    on_containerd(world)
    await world.start()
    await world.run_pod("a", 3, on=0)
    await world.until_assigned("a")
    on_containerd(world, "default")
    await world.changes.until(lambda: world.kubelet.capacity(names.GPU_MEM) == 0)
    assert ours(world).exists()
    world.end_pod("a")
    await world.changes.until(lambda: not ours(world).exists(), "removed")


async def test_a_stopping_agent_leaves_our_description_for_restarting_containers(world: World) -> None:
    describe(world, 0, 1)
    on_containerd(world)
    await world.start()
    await world.stop()
    assert ours(world).exists()


async def test_while_a_folder_is_retried_containers_are_served_as_before(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    trying, go_on, tries = threading.Event(), threading.Event(), itertools.count()

    def write(folders: CdiFolders, content: bytes, *, isolated: bool = False) -> bool:
        if next(tries):
            trying.set()
            assert go_on.wait(20)
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(CdiFolders, "write", write)
    world.use(container_runtime=Asked.AUTO)
    describe(world, 0, 1)
    on_containerd(world)
    await world.start()
    agent = world.agent
    try:
        agent._access.look_again()
        assert await asyncio.to_thread(trying.wait, 20)
        assert not (await world.run_pod("a", 3, on=0)).answers["c"].cdi_devices
    finally:
        go_on.set()


@pytest.mark.parametrize("runtime", [Asked.AUTO, Asked.CDI])
async def test_an_unwritable_folder(world: World, runtime: Asked) -> None:
    blocked: Any = world.folder / "cdi-blocked"
    blocked.write_text("a file where the folder should be")
    world.use(container_runtime=runtime, cdi_folders=(world.settings.cdi_folders[0], blocked))
    describe(world, 0, 1)
    on_containerd(world)
    await world.start()
    agent = world.agent
    if runtime is Asked.AUTO:
        assert agent.missing() == []
        assert not (await world.run_pod("a", 3, on=0)).answers["c"].cdi_devices
    else:
        await world.changes.until(lambda: world.api.reported("CDIUnavailable"), "reported")
        assert "cannot be written" in agent.missing()[0]
        assert world.kubelet.allocatable(names.GPU_MEM) == 0
