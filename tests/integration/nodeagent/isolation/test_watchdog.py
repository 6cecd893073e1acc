"""Memory and compute used by processes by the driver's count, compared with their containers' shares."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpushare.api import names
from gpushare.api.node.device import Device, described_devices
from gpushare.api.objects import decode_node
from gpushare.nodeagent.driver.telemetry import GpuReading
from gpushare.nodeagent.isolation.options import Watch, WatchPolicy
from gpushare.nodeagent.isolation.watchdog.cgroups import OUTSIDE, Owner
from gpushare.nodeagent.isolation.watchdog.processes import kill, owners
from gpushare.nodeagent.isolation.watchdog.violations import GpuProcess
from tests.integration.nodeagent.cluster_objects import NODE
from tests.integration.nodeagent.conftest import World
from tests.integration.nodeagent.scripted_kubelet import Admitted
from tests.integration.nodeagent.scripted_nvml import gpu

CONTAINER = "0a1b2c3d" * 8


def watch(world: World, policy: WatchPolicy = "report", grace_s: float = 0.05) -> None:
    isolation = replace(world.settings.isolation, watch=Watch(policy, grace_s, world.folder / "proc"))
    world.use(isolation=isolation)


def process(world: World, pid: int, cgroup: str = "/init.scope", name: str = "python3") -> None:
    folder = world.folder / "proc" / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup").write_text(f"0::{cgroup}\n")
    (folder / "comm").write_text(f"{name}\n")


def contained(admitted: Admitted, container: str = CONTAINER) -> str:
    return f"/kubepods/burstable/pod{admitted.pod['metadata']['uid']}/{container}"


def uses(world: World, *processes: tuple[int, int, int]) -> None:
    """Processes on GPU 0: PID, MiB, percent."""
    world.nvml.running = [GpuProcess(gpu(0).uuid, pid, mib, sm, "C") for pid, mib, sm in processes]


def exported(world: World, name: str, container: str = "c") -> float | None:
    """``gpushare_container_NAME`` of ``default/a`` on GPU 0; ``None``: there is no such metric."""
    its = f'namespace="default",pod="a",container="{container}",.*UUID="{gpu(0).uuid}"'
    text = world.agent.metrics_pages.exposition().decode()
    found = re.search(rf"^gpushare_container_{name}{{{its}}} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else None


def report_container(world: World, name: str, container: str = "c") -> None:
    """The kubelet writes the container's ID into the pod's status."""
    made: dict[str, Any] = world.api.objects["pods", f"default/{name}"]
    status = {
        "phase": "Running",
        "containerStatuses": [{"name": container, "containerID": f"containerd://{CONTAINER}"}],
    }
    world.api.put_pod({**made, "status": status})


def first_gpu(world: World) -> Device:
    found = described_devices(decode_node(world.api.objects["nodes", NODE]))
    assert found is not None
    return found[2][0]


async def test_a_container_above_its_share_is_an_event_on_the_pod_and_counted(world: World) -> None:
    watch(world)
    await world.start(mode="cgpu")
    admitted = await world.run_pod("a", 3, on=0)
    await world.until_assigned("a")
    report_container(world, "a")
    process(world, 41, contained(admitted))
    process(world, 42, contained(admitted))
    uses(world, (41, 3000, 10), (42, 200, 20))
    await world.changes.until(lambda: world.api.reported("GPUMemoryExceeded"), "reported")
    (event,) = world.api.reported("GPUMemoryExceeded")
    # Before the agent knows which container it is, the pod is judged.
    note = " uses 3200 MiB of GPU 0, its share is 3072 MiB (processes 41, 42 on the node)"
    assert event["note"].partition(" uses ")[0] in ("container c", "the pod")
    assert note in event["note"]
    assert (event["regarding"]["kind"], event["regarding"]["name"]) == ("Pod", "a")
    agent = world.agent
    await world.changes.until(lambda: exported(world, "memory_used_bytes") == 3200 << 20)
    assert exported(world, "compute_used_ratio") == 0.3
    assert agent.metrics.exceeded.value("memory") >= 1.0
    await world.changes.until(lambda: event.get("series", {}).get("count", 1) > 1, "counted when it goes on")
    assert len(world.api.reported("GPUMemoryExceeded")) == 1
    # Memory used above a share is not free either.
    await world.changes.until(lambda: first_gpu(world).foreign_mib == 128, "described")
    assert first_gpu(world).foreign_by == "pod default/a (above its share)"
    uses(world)
    await world.changes.until(lambda: exported(world, "memory_used_bytes") == 0)


async def test_until_its_containers_are_known_the_pod_is_judged_as_a_whole(world: World) -> None:
    watch(world)
    await world.start(mode="cgpu")
    admitted = await world.run_pod("a", 3, on=0)
    process(world, 41, contained(admitted))
    uses(world, (41, 4000, 0))
    await world.changes.until(lambda: world.api.reported("GPUMemoryExceeded"), "reported")
    assert world.api.reported("GPUMemoryExceeded")[0]["note"].startswith("the pod uses 4000 MiB of GPU 0")


async def test_on_a_share_node_containers_are_trusted(world: World) -> None:
    watch(world)
    await world.start(mode="share")
    admitted = await world.run_pod("a", 3, on=0)
    process(world, 41, contained(admitted))
    uses(world, (41, 4000, 0))
    await world.changes.until(lambda: exported(world, "memory_used_bytes", container="") == 4000 << 20)
    assert not world.api.reported("GPUMemoryExceeded")


async def test_sustained_compute_above_the_share_is_reported(world: World) -> None:
    watch(world, "kill")
    await world.start(mode="core_mem")
    admitted = await world.run_pod("a", 3, on=0, core=30)
    process(world, 41, contained(admitted))
    uses(world, (41, 10, 60))
    await world.changes.until(lambda: world.api.reported("GPUComputeExceeded"), "reported")
    assert (
        "uses 60% of GPU 0 for 0.05 s and more, its share is 30%"
        in (world.api.reported("GPUComputeExceeded")[0]["note"])
    )


async def test_by_policy_the_processes_are_killed_after_the_grace_period(world: World) -> None:
    watch(world, "kill")
    await world.start(mode="cgpu")
    agent = world.agent
    killed: list[tuple[int, Owner]] = []

    def end(pid: int, owner: Owner, proc: Path) -> str:
        killed.append((pid, owner))
        return "" if pid == 41 else "Operation not permitted"

    agent._watchdog._end = end
    admitted = await world.run_pod("a", 3, on=0)
    for pid in (41, 42):
        process(world, pid, contained(admitted))
    process(world, 43)
    uses(world, (41, 3000, 0), (42, 500, 0), (43, 100, 0))
    await world.changes.until(lambda: world.api.reported("GPUMemoryKilled"), "reported")
    first = world.api.reported("GPUMemoryExceeded")[0]["note"]
    assert first.endswith("; it will be killed if this continues for 0.05 s")
    assert world.api.reported("GPUMemoryKilled")[0]["note"].endswith(
        "; killed by the node agent: 41; could not be killed: 42 (Operation not permitted)"
    )
    assert {pid for pid, _ in killed} == {41, 42}
    assert agent.metrics.killed.value() >= 1.0


async def test_memory_of_unmanaged_processes_is_reported_and_not_offered(world: World) -> None:
    watch(world)
    await world.start(mode="share")
    process(world, 41)
    process(world, 42, f"/kubepods/pod2f1c3a5e-0d6b-4c2a-9a57-0b8f2f1d7e12/{CONTAINER}")
    uses(world, (41, 1000, 0), (42, 500, 0))
    await world.changes.until(lambda: first_gpu(world).foreign_mib == 1536, "described")
    await world.changes.until(lambda: world.api.reported("UnmanagedGPUUsage"), "reported")
    event = world.api.reported("UnmanagedGPUUsage")[0]
    assert event["regarding"]["kind"] == "Node"
    assert event["note"] == (
        f"GPU 0 ({gpu(0).uuid}): 1500 MiB are used without an allocation by process 41 (in no pod), "
        "process 42 (pod UID 2f1c3a5e-0d6b-4c2a-9a57-0b8f2f1d7e12). 1536 MiB are not allocated to pods"
    )
    text = world.agent.metrics_pages.exposition().decode()
    assert re.search(
        rf'^gpushare_gpu_memory_unmanaged_bytes.*{gpu(0).uuid}"}} {1536 << 20}$', text, re.MULTILINE
    )
    # The kubelet's capacity stays: it counts allocations.
    assert world.kubelet.allocatable(names.GPU_MEM) == 30
    uses(world)
    await world.changes.until(lambda: first_gpu(world).foreign_mib == 0, "described")
    await world.changes.until(lambda: world.api.reported("UnmanagedGPUUsageResolved"), "reported")


async def test_system_processes_are_not_unmanaged(world: World) -> None:
    watch(world)
    await world.start(mode="mps")
    process(world, 42, name="nvidia-cuda-mps")
    process(world, 43)
    uses(world, (42, 5000, 0), (43, 100, 0))
    await world.changes.until(lambda: first_gpu(world).foreign_mib == 128, "described")


async def test_memory_of_an_exited_process_is_not_free_while_the_driver_counts_it(
    world: World,
) -> None:
    watch(world)
    await world.start(mode="cgpu")
    process(world, 4711)
    uses(world, (4711, 9000, 0))
    await world.changes.until(lambda: first_gpu(world).foreign_by == "process 4711 (in no pod)", "described")
    shutil.rmtree(world.folder / "proc" / "4711")
    exited_process = "process 4711 (ended, but its memory was not freed)"
    await world.changes.until(lambda: first_gpu(world).foreign_by == exited_process, "described again")
    assert first_gpu(world).foreign_mib == 9024
    # The driver no longer lists the process, and still counts its memory.
    uses(world)
    world.nvml.reading_of = {gpu(0).uuid: GpuReading(gpu(0).uuid, used_mib=9000)}
    unlisted = "something that the driver does not list (9000 MiB)"
    await world.changes.until(lambda: first_gpu(world).foreign_by == unlisted, "described once more")
    assert first_gpu(world).foreign_mib == 9024
    assert not world.api.reported("UnmanagedGPUUsageResolved")
    world.nvml.reading_of = {gpu(0).uuid: GpuReading(gpu(0).uuid, used_mib=0)}
    await world.changes.until(lambda: first_gpu(world).foreign_by == "", "described as free")
    assert first_gpu(world).foreign_mib == 0
    await world.changes.until(lambda: world.api.reported("UnmanagedGPUUsageResolved"), "reported")


async def test_memory_counted_by_the_driver_belongs_to_the_pods_that_use_it(world: World) -> None:
    watch(world)
    world.nvml.reading_of = {gpu(0).uuid: GpuReading(gpu(0).uuid, used_mib=4016)}
    await world.start(mode="cgpu")
    admitted = await world.run_pod("a", 3, on=0)
    process(world, 41, contained(admitted))
    uses(world, (41, 3000, 0))
    # 16 MiB are the driver's own, for the process.
    await world.changes.until(lambda: first_gpu(world).foreign_mib == 1024, "described")


async def test_a_restarted_agent_knows_unmanaged_usage_before_it_advertises(world: World) -> None:
    watch(world)
    process(world, 41)
    uses(world, (41, 1000, 0))
    await world.start(mode="share")
    await world.changes.until(lambda: names.ANN_DEVICES in world.api.annotations("nodes", NODE))
    assert first_gpu(world).foreign_mib == 1024


async def test_switched_off_nothing_is_checked(world: World) -> None:
    watch(world, "off")
    process(world, 41)
    uses(world, (41, 1000, 0))
    await world.start(mode="share")
    await world.changes.until(lambda: names.ANN_DEVICES in world.api.annotations("nodes", NODE))
    assert first_gpu(world).foreign_mib == 0
    assert world.agent.metrics.last_sample.value() == 0


async def test_the_time_of_the_last_sample_is_a_metric_that_is_reset_when_nvml_is_lost(world: World) -> None:
    watch(world)
    await world.start(mode="share")
    sampled = world.agent.metrics.last_sample
    await world.changes.until(lambda: sampled.value() > 1_700_000_000, "looked")
    world.agent._watchdog.lose()
    assert sampled.value() == 0


@pytest.fixture
def sleeper() -> Any:
    started = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield started
    started.kill()
    started.communicate()


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs pidfd_open")
def test_a_process_is_killed_only_while_its_owner_is_unchanged(sleeper: Any) -> None:
    found = owners([sleeper.pid, 1 << 22])
    assert list(found) == [sleeper.pid]
    owner = found[sleeper.pid]
    assert owner is not None
    assert kill(sleeper.pid, Owner("another", "x")) == "the PID now belongs to another process"
    assert sleeper.poll() is None
    assert kill(sleeper.pid, owner) == ""
    assert sleeper.wait(10.0) == -9
    assert kill(sleeper.pid, OUTSIDE) == "No such process"
