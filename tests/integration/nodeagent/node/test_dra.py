"""A node in mode ``dra``: its slice at the API server, and claims that the kubelet has prepared."""

import asyncio
import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from gpushare.api import names
from gpushare.kubeletapi import DRA_HEALTH_SERVICES
from gpushare.nodeagent.dra import driver, health, plugin
from gpushare.nodeagent.dra.claim_files import ClaimFiles
from gpushare.nodeagent.isolation.options import AskedIsolation
from gpushare.nodeagent.runtime.selection import Asked
from tests.integration.nodeagent.cluster_objects import NODE
from tests.integration.nodeagent.conftest import World
from tests.integration.nodeagent.isolation.isolating import describe, directories, install
from tests.integration.nodeagent.node.scripted_dra_kubelet import DraKubelet, PrepareFailed, allocated
from tests.integration.nodeagent.node.test_modes import relabel
from tests.integration.nodeagent.scripted_nvml import gpu

FIRST, SECOND = gpu(0).uuid.lower(), gpu(1).uuid.lower()
LIMIT = f"gpu {gpu(0).uuid} memory_bytes={3 << 30} core_percent=30 core_policy=hard\n"


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "_LOOK_S", 0.02)


def kubelet_of(world: World) -> DraKubelet:
    return DraKubelet(world.settings.kubelet_dir.parent / "plugins_registry", world.changes)


async def started(world: World, *, in_place: bool = False) -> DraKubelet:
    """A ``dra`` node that isolates, registered with its kubelet."""
    install(world)
    if in_place:
        describe(world)
        world.use(container_runtime=Asked.CDI)
    kubelet = kubelet_of(world)
    await world.start(mode="dra", ready=False)
    info = await kubelet.register()
    assert (info.type, info.name, list(info.supported_versions)) == (
        "DRAPlugin",
        "gpushare.dev",
        ["v1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"],
    )
    agent = world.agent
    assert agent is not None
    await world.changes.until(lambda: not agent.missing(), "the agent is ready")
    return kubelet


def slices(world: World) -> list[dict[str, Any]]:
    return [item for (kind, _), item in world.api.objects.items() if kind == "resourceslices"]


def taints(world: World) -> dict[str, tuple[str, str, str]]:
    """Key, value and effect of each device's taint, if it has one."""
    return {
        device["name"]: (taint["key"], taint.get("value", ""), taint["effect"])
        for one in slices(world)
        for device in one["spec"].get("devices", ())
        for taint in device.get("taints", ())
    }


def writes(world: World) -> list[str]:
    return [
        one
        for one in world.api.requests
        if "resourceslices" in one and one.startswith(("POST", "PUT", "DELETE"))
    ]


def put(world: World, claim: dict[str, Any]) -> dict[str, Any]:
    world.api.put("resourceclaims", f"default/{claim['metadata']['name']}", claim)
    return claim


def edits(world: World, claim: dict[str, Any]) -> dict[str, Any]:
    """The CDI file's edits for the claim's containers."""
    (device,) = json.loads(cdi_file(world, claim).read_text())["devices"]
    assert device["name"] == claim["metadata"]["uid"]
    found: dict[str, Any] = device["containerEdits"]
    return found


def cdi_file(world: World, claim: dict[str, Any]) -> Path:
    return world.settings.cdi_folders[-1] / f"gpushare.dev-claim-{claim['metadata']['uid']}.json"


def host_paths(world: World, claim: dict[str, Any]) -> dict[str, Path]:
    return {one["containerPath"]: Path(one["hostPath"]) for one in edits(world, claim)["mounts"]}


async def test_a_node_publishes_its_gpus_and_withdraws_them_with_the_mode(world: World) -> None:
    await started(world)
    (found,) = slices(world)
    assert found["metadata"]["ownerReferences"][0]["uid"] == "node-uid"
    spec = found["spec"]
    assert (spec["driver"], spec["nodeName"]) == ("gpushare.dev", NODE)
    assert spec["pool"] == {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    assert [one["name"] for one in spec["devices"]] == [FIRST, SECOND]
    first = spec["devices"][0]
    assert first["allowMultipleAllocations"] is True
    assert first["attributes"]["uuid"] == {"string": gpu(0).uuid}
    assert first["capacity"]["memory"]["value"] == "15360Mi"
    assert not world.kubelet.registrations, "there are no extended resources"
    relabel(world, "cgpu")
    await world.changes.until(lambda: not slices(world), "no slice")


async def test_a_node_that_is_to_use_only_the_drivers_limits_offers_no_gpu_to_claims(world: World) -> None:
    install(world, asked=AskedIsolation.DRIVER)
    kubelet = kubelet_of(world)
    await world.start(mode="dra", ready=False)
    await kubelet.register()
    await world.changes.until(lambda: len(taints(world)) == 2, "no GPU is offered")
    for key, why, effect in taints(world).values():
        assert (key, effect) == ("gpushare.dev/unhealthy", "NoSchedule")
        assert why.startswith("limits-by-cgroup-do-not-apply-to-ResourceClaims")


async def test_the_slice_is_written_only_when_it_changes(world: World) -> None:
    await started(world)
    assert len(writes(world)) == 1
    world.nvml.faults[gpu(1).uuid] = "GPU is lost"
    await world.changes.until(lambda: slices(world)[0]["spec"]["pool"]["generation"] == 2)
    assert taints(world) == {SECOND: ("gpushare.dev/unhealthy", "GPU-is-lost", "NoSchedule")}
    del world.nvml.faults[gpu(1).uuid]
    await world.changes.until(lambda: slices(world)[0]["spec"]["pool"]["generation"] == 3)
    assert len(writes(world)) == 3
    await world.stop()
    kubelet = kubelet_of(world)
    await world.start(ready=False)
    await kubelet.register()
    agent = world.agent
    assert agent is not None
    await world.changes.until(lambda: not agent.missing())
    assert len(writes(world)) == 3, "the agent that follows finds it as it should be"


async def test_claims_leave_a_gpu_that_stays_lost_and_keep_one_with_an_xid(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "EVICT_AFTER_S", 0.2)
    world.use(xid_recovery_s=1000.0)
    await started(world)
    world.nvml.send_xid(gpu(0).uuid, 48)
    world.nvml.faults[gpu(1).uuid] = "GPU is lost"
    await world.changes.until(
        lambda: taints(world).get(SECOND) == ("gpushare.dev/unhealthy", "GPU-is-lost", "NoExecute")
    )
    assert taints(world)[FIRST] == (
        "gpushare.dev/unhealthy",
        "critical-error-XID-48-for-which-NVIDIA-advises-a-reset",
        "NoSchedule",
    )
    assert len(slices(world)[0]["spec"]["devices"]) == 2
    written, before = len(writes(world)), taints(world)
    await world.stop()
    kubelet = kubelet_of(world)
    await world.start(ready=False)
    await kubelet.register()
    agent = world.agent
    await world.changes.until(lambda: not agent.missing())
    assert (len(writes(world)), taints(world)) == (written, before), "the agent that follows goes on with it"


async def test_a_gpu_that_fails_among_many_gets_its_taint(world: World) -> None:
    world.nvml.gpus = [gpu(index) for index in range(70)]
    await started(world)
    await world.changes.until(lambda: len(slices(world)) == 2, "both slices")
    world.nvml.faults[gpu(1).uuid] = "GPU is lost"
    await world.changes.until(lambda: list(taints(world)) == [SECOND], "it has a taint")
    assert {one["spec"]["pool"]["resourceSliceCount"] for one in slices(world)} == {2}
    assert sum(len(one["spec"]["devices"]) for one in slices(world)) == 70


@pytest.mark.parametrize("service", DRA_HEALTH_SERVICES)
async def test_the_kubelet_gets_gpu_health_when_it_changes_and_periodically(
    world: World, monkeypatch: pytest.MonkeyPatch, service: str
) -> None:
    monkeypatch.setattr(health, "REPORT_S", 0.05)
    kubelet = await started(world)
    reports = kubelet.health(service)
    well = {FIRST: ("HEALTHY", ""), SECOND: ("HEALTHY", "")}
    assert await anext(reports) == well
    assert await anext(reports) == well, "a report that gets old says nothing"
    world.nvml.faults[gpu(1).uuid] = "GPU is lost"
    ill = well | {SECOND: ("UNHEALTHY", "GPU is lost")}
    async for report in reports:
        if report == ill:
            break
        assert report == well
    await reports.aclose()


async def test_where_taints_are_off_a_cordoned_gpu_is_removed_from_the_slice(world: World) -> None:
    world.api.taints_devices = False
    await started(world)
    world.nvml.faults[gpu(1).uuid] = "GPU is lost"
    await world.changes.until(lambda: [one["name"] for one in slices(world)[0]["spec"]["devices"]] == [FIRST])
    del world.nvml.faults[gpu(1).uuid]
    await world.changes.until(lambda: len(slices(world)[0]["spec"]["devices"]) == 2)


async def test_a_slice_that_the_kubelet_removes_is_written_again(world: World) -> None:
    await started(world)
    (found,) = slices(world)
    world.api.drop("resourceslices", found["metadata"]["name"])
    await world.changes.until(lambda: slices(world), "a slice")


async def test_a_claim_is_prepared_with_the_isolation_of_core_mem(world: World) -> None:
    kubelet = await started(world, in_place=True)
    claim = put(world, allocated("share", (FIRST, "3Gi", 30)))
    (device,) = await kubelet.prepare(claim)
    assert (list(device.request_names), device.pool_name, device.device_name) == (["gpu0"], NODE, FIRST)
    assert device.share_id == "00000000-0000-0000-0000-000000000000"
    uid = claim["metadata"]["uid"]
    assert list(device.cdi_device_ids) == [
        f"gpushare.dev/isolated={gpu(0).uuid}",
        f"gpushare.dev/claim={uid}",
    ]
    environment = dict(one.split("=", 1) for one in edits(world, claim)["env"])
    assert environment[names.ENV_VISIBLE_DEVICES] == gpu(0).uuid
    assert environment[names.ENV_MEM_INDEX] == "0"
    assert (environment[names.ENV_MEM_CONTAINER], environment[names.ENV_MEM_DEVICE]) == ("3072", "15360")
    assert environment[names.ENV_MEM_LIMIT] == "3072"
    assert environment[names.ENV_CORE_PERCENT] == "30"
    found = host_paths(world, claim)
    assert set(found) == {"/run/gpushare/limits", "/run/gpushare/usage"}
    assert found["/run/gpushare/limits"].read_text() == (
        f"gpushare-limits 1.2\ncontainer default/share {uid}\n{LIMIT}"
    )


async def test_where_nvidias_runtime_brings_the_driver_the_libraries_come_with_the_claim(
    world: World,
) -> None:
    kubelet = await started(world)
    claim = put(world, allocated("share", (FIRST, "3Gi", 0)))
    (device,) = await kubelet.prepare(claim)
    assert list(device.cdi_device_ids) == [f"gpushare.dev/claim={claim['metadata']['uid']}"]
    assert "/etc/ld.so.preload" in host_paths(world, claim)
    assert not any(one.startswith(names.ENV_CORE_PERCENT) for one in edits(world, claim)["env"])
    assert "core_percent" not in host_paths(world, claim)["/run/gpushare/limits"].read_text()


async def test_where_nvidias_runtime_brings_the_driver_the_claim_has_the_gpus_device_nodes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "gpushare.nodeagent.runtime.host_devices.Path.is_char_device",
        lambda path: path.name != "nvidia-modeset",
    )
    kubelet = await started(world)
    claim = put(world, allocated("share", (FIRST, "3Gi", 0)))
    await kubelet.prepare(claim)
    assert [one["path"] for one in edits(world, claim)["deviceNodes"]] == [
        "/dev/nvidia0",
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
    ]


async def test_preparing_a_claim_again_gives_the_same_and_running_containers_keep_their_files(
    world: World,
) -> None:
    kubelet = await started(world)
    claim = put(world, allocated("share", (FIRST, "3Gi", 30)))
    before = await kubelet.prepare(claim)
    usage = host_paths(world, claim)["/run/gpushare/usage"]
    inode = usage.stat().st_ino
    assert await kubelet.prepare(claim) == before
    await world.stop()
    await world.start(ready=False)
    await kubelet.register()
    assert await kubelet.prepare(claim) == before
    assert usage.stat().st_ino == inode


async def test_after_a_reboot_removed_the_cdi_files_the_kubelet_prepares_again(world: World) -> None:
    kubelet = await started(world)
    claim = put(world, allocated("share", (FIRST, "3Gi", 30)))
    before = await kubelet.prepare(claim)
    await world.stop()
    cdi_file(world, claim).unlink()
    await world.start(ready=False)
    await kubelet.register()
    assert await kubelet.prepare(claim) == before
    assert cdi_file(world, claim).exists()


async def test_two_devices_of_a_claim_are_two_gpus_under_one_limit_file(world: World) -> None:
    kubelet = await started(world)
    claim = put(world, allocated("pair", (FIRST, "3Gi", 30), (SECOND, "1Gi", 50)))
    devices = await kubelet.prepare(claim)
    assert [one.device_name for one in devices] == [FIRST, SECOND]
    text = host_paths(world, claim)["/run/gpushare/limits"].read_text()
    assert f"gpu {gpu(0).uuid} memory_bytes={3 << 30} " in text
    assert f"gpu {gpu(1).uuid} memory_bytes={1 << 30} " in text


async def test_a_claims_parameters_reach_its_limits(world: World) -> None:
    kubelet = await started(world)
    claim = allocated("share", (FIRST, "3Gi", 30))
    parameters = {
        "apiVersion": "gpushare.dev/v1",
        "kind": "ShareConfig",
        "computePolicy": "work-conserving",
        "computeClass": "latency",
    }
    config = {"opaque": {"driver": "gpushare.dev", "parameters": parameters}}
    claim["status"]["allocation"]["devices"]["config"] = [config]
    await kubelet.prepare(put(world, claim))
    text = host_paths(world, claim)["/run/gpushare/limits"].read_text()
    assert "core_percent=30 core_policy=idle core_class=latency\n" in text


async def test_admin_access_sees_the_gpu_without_a_limit_and_allocates_nothing(world: World) -> None:
    kubelet = await started(world, in_place=True)
    claim = put(world, allocated("monitor", (FIRST, "0", 0), adminAccess=True))
    (device,) = await kubelet.prepare(claim)
    assert len(device.cdi_device_ids) == 2
    assert edits(world, claim) == {"env": [f"{names.ENV_VISIBLE_DEVICES}={gpu(0).uuid}"]}
    assert not directories(world)
    relabel(world, "cgpu")
    await world.changes.until(lambda: world.kubelet.allocatable(names.GPU_MEM) == 30)
    await kubelet.unprepare(claim)
    assert not cdi_file(world, claim).exists()


async def test_unprepare_leaves_nothing_and_may_be_repeated(world: World) -> None:
    kubelet = await started(world)
    claim = put(world, allocated("share", (FIRST, "3Gi", 30)))
    await kubelet.prepare(claim)
    assert directories(world)
    world.api.drop("resourceclaims", "default/share")
    for _ in range(2):
        await kubelet.unprepare(claim)
        assert not directories(world)
        assert not cdi_file(world, claim).exists()


async def test_unprepare_waits_for_what_a_cancelled_prepare_is_still_writing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubelet = await started(world)
    claim = put(world, allocated("share", (FIRST, "3Gi", 30)))
    write, released, states = ClaimFiles.write, threading.Event(), []

    def slow(*args: Any) -> None:
        states.append("begun")
        world.changes.notify()
        released.wait(30.0)
        write(*args)
        states.append("written")
        world.changes.notify()

    monkeypatch.setattr(ClaimFiles, "write", slow)
    preparing = asyncio.create_task(kubelet.prepare(claim))
    await world.changes.until(lambda: states == ["begun"], "its file is being written")
    preparing.cancel()
    await asyncio.wait([preparing])
    unpreparing = asyncio.create_task(kubelet.unprepare(claim))
    await kubelet.register()
    released.set()
    await unpreparing
    await world.changes.until(lambda: states == ["begun", "written"], "its file was written")
    assert not cdi_file(world, claim).exists()


async def test_files_of_a_prepared_claim_stay_and_those_of_no_claim_go(world: World) -> None:
    kubelet = await started(world)
    claim = put(world, allocated("share", (FIRST, "3Gi", 30)))
    await kubelet.prepare(claim)
    other = put(world, allocated("other", (SECOND, "1Gi", 0)))
    await kubelet.prepare(other)
    await world.stop()
    # As where the process died between the two steps of unpreparing.
    cdi_file(world, other).unlink()
    await world.start(ready=False)
    await kubelet.register()
    await world.changes.until(lambda: set(directories(world)) == {claim["metadata"]["uid"]})


@pytest.mark.parametrize(
    ("claim", "why"),
    [
        (allocated("gone", ("gpu-x", "1Gi", 0)), "node n1 has no GPU gpu-x now"),
        (allocated("elsewhere", (FIRST, "1Gi", 0), node="n2"), "it is allocated no GPU of node n1"),
        (allocated("none", (FIRST, "0", 0)), "which is not a valid share"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
async def test_an_unpreparable_claim_is_refused_with_the_reason(
    world: World, claim: dict[str, Any], why: str
) -> None:
    kubelet = await started(world)
    put(world, claim)
    with pytest.raises(PrepareFailed, match=why):
        await kubelet.prepare(claim)
    assert not directories(world)


async def test_a_claim_that_was_replaced_or_is_gone_is_refused(world: World) -> None:
    kubelet = await started(world)
    claim = allocated("share", (FIRST, "3Gi", 30))
    with pytest.raises(PrepareFailed, match="it does not exist any more"):
        await kubelet.prepare(claim)
    put(world, allocated("share", (FIRST, "3Gi", 30), uid="another"))
    with pytest.raises(PrepareFailed, match="the claim was replaced meanwhile"):
        await kubelet.prepare(claim)


async def test_a_cluster_without_shared_devices_is_an_event_on_the_node_and_gets_no_slice(
    world: World,
) -> None:
    install(world)
    kubelet_of(world)
    world.api.shares_devices = False
    await world.start(mode="dra", ready=False)
    await world.changes.until(lambda: world.api.reported("ClaimsUnavailable"), "an event")
    assert (
        "node mode dra needs Kubernetes 1.36 or newer" in world.api.reported("ClaimsUnavailable")[0]["note"]
    )
    assert not writes(world), "not even for a moment, in which whole GPUs would be allocated"


async def test_a_kubelet_that_refuses_the_driver_is_an_event_on_the_node(world: World) -> None:
    install(world)
    kubelet = kubelet_of(world)
    await world.start(mode="dra", ready=False)
    await kubelet.register("the version is not supported")
    await world.changes.until(lambda: world.api.reported("ClaimsUnavailable"), "an event")
    assert "the version is not supported" in world.api.reported("ClaimsUnavailable")[0]["note"]


async def test_a_gpu_with_a_claim_is_withheld_in_another_mode_until_it_is_released(world: World) -> None:
    kubelet = await started(world)
    claim = put(world, allocated("share", (FIRST, "3Gi", 30)))
    await kubelet.prepare(claim)
    relabel(world, "cgpu")
    await world.changes.until(lambda: world.kubelet.allocatable(names.GPU_MEM) == 15)
    await kubelet.unprepare(claim)
    await world.changes.until(lambda: world.kubelet.allocatable(names.GPU_MEM) == 30)


async def test_claims_get_the_rest_of_a_gpu_until_pods_from_another_mode_end(world: World) -> None:
    install(world)
    kubelet_of(world)
    await world.start(mode="core_mem")
    await world.run_pod("a", 3, on=0, core=30)
    await world.run_pod("b", 15, on=1)
    await world.until_assigned("a", "b")
    relabel(world, "dra")
    await world.changes.until(lambda: slices(world), "a slice")
    (device,) = slices(world)[0]["spec"]["devices"]
    assert device["name"] == FIRST, "nothing is left of the other one"
    values = {name: capacity["value"] for name, capacity in device["capacity"].items()}
    assert values == {"memory": "12288Mi", "compute": "70", "shares": "15"}
    text = world.agent.metrics_pages.exposition().decode()
    assert f'gpushare_gpu_memory_allocated_bytes{{node="n1",gpu="0",UUID="{gpu(0).uuid}"}} {3 << 30}' in text
    world.end_pod("a")
    world.end_pod("b")
    await world.changes.until(
        lambda: (
            [one["capacity"]["memory"]["value"] for one in slices(world)[0]["spec"]["devices"]]
            == ["15360Mi", "15360Mi"]
        )
    )


async def test_sockets_of_dead_agents_are_removed(world: World) -> None:
    kubelet = kubelet_of(world)
    dead = kubelet.folder / "gpushare.dev-0000000000000001.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left:
        left.bind(str(dead))
    install(world)
    await world.start(mode="dra", ready=False)
    await world.changes.until(lambda: not dead.exists(), "it is gone")
    await kubelet.register()
