"""The files that the node agent makes for a container, used by the real libraries on the fake driver."""

import asyncio
import os
import shutil
import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.api import names
from gpushare.api.node.device import description_of
from gpushare.api.objects import decode_node
from gpushare.nodeagent.isolation.backends.subprocesses import Child
from gpushare.nodeagent.isolation.options import AskedIsolation
from gpushare_playground.gpus import preset, write
from tests.integration.isolation.containers import run_tenant
from tests.integration.nodeagent.cluster_objects import NODE
from tests.integration.nodeagent.conftest import World
from tests.integration.nodeagent.scripted_kubelet import Admitted
from tests.integration.nodeagent.scripted_nvml import gpu
from tests.unit.fakegpu import building as fakegpu
from tests.unit.isolation.building import BUILT, OPEN, Container, build, lay_out


def in_container(world: World, admitted: Admitted, node: Path) -> Container:
    """The container's /run/gpushare, with what the answer mounts there."""
    made = lay_out(world.folder / admitted.pod["metadata"]["name"], node)
    made.usage.unlink()
    for mount in admitted.answers["c"].mounts:
        if mount.container_path in ("/run/gpushare/limits", "/run/gpushare/usage"):
            # The file itself, as a mount shows it: the library follows no link.
            (made.run / Path(mount.container_path).name).hardlink_to(mount.host_path)
    return made


@pytest.fixture
async def described(world: World, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in driver is installed, and has the GPUs that the agent finds."""
    await asyncio.to_thread(build, "libraries")
    await asyncio.to_thread(fakegpu.build, "library")
    world.nvml.gpus = [gpu(0, 16160)]
    what = preset("v100-16160", NODE)
    path = world.folder / "node.gpus"
    write(path, replace(what, gpus=(replace(what.gpus[0], uuid=gpu(0).uuid),)))
    driver = world.folder / "driver" / "usr" / "lib64"
    driver.mkdir(parents=True)
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        shutil.copy(fakegpu.BUILT / name, driver)
    monkeypatch.setenv("FAKEGPU_NODE", str(path))
    world.use(
        driver_root=world.folder / "driver",
        isolation=replace(world.settings.isolation, asked=AskedIsolation.AUTO, library_folder=OPEN),
    )
    return path


async def test_the_libraries_are_tested_on_the_driver_before_any_container_gets_them(
    world: World, described: Path
) -> None:
    await world.start(mode="cgpu")
    assert world.agent.metrics.selftest.value("passed") == 1.0
    await world.changes.until(
        lambda: (
            world.api.annotations("nodes", NODE).get(names.ANN_ISOLATION)
            == "preload (by /etc/ld.so.preload): mode cgpu"
        ),
        "annotated, without a but",
    )


async def test_two_of_fifteen_units_are_2154_mib_and_no_more(world: World, described: Path) -> None:
    await world.start(mode="cgpu")
    one = in_container(world, await world.run_pod("a", 2, on=0), described)
    other = in_container(world, await world.run_pod("b", 13, on=0), described)
    for container, total, fits, above in ((one, 2154, 1800, 400), (other, 14005, 13000, 1000)):
        lines = f"""
context()
assert info()[1] == {total}, info()
result, held = take("plain", {fits} * MIB)
assert result == 0, result
result, none = take("plain", {above} * MIB)
assert result == OUT_OF_MEMORY, result
"""
        await asyncio.to_thread(run_tenant, container, lines)


async def test_the_memory_of_a_context_is_measured_by_containers_and_written_on_the_node(
    world: World, described: Path
) -> None:
    def context_mib() -> int:
        found = description_of(decode_node(world.api.objects["nodes", NODE]))
        return found.devices[0].context_mib if found is not None else -1

    await world.start(mode="cgpu")
    little = in_container(world, await world.run_pod("a", 1, on=0), described)
    assert context_mib() == 0
    await asyncio.to_thread(run_tenant, little, "context(); print(used())")
    await world.changes.until(lambda: context_mib() == 256, "written on the node", 30.0)
    world.end_pod("a")
    await world.changes.until(lambda: little.limits.stat().st_nlink == 1, "removed")
    await world.stop()
    # The next agent finds no container that could report it.
    await world.start(mode="cgpu")
    assert context_mib() == 256


async def test_on_a_node_that_limits_compute_the_arbiter_runs_and_is_restarted(
    world: World, described: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(Child.__init__.__kwdefaults__, "steady_s", 0.1)
    await asyncio.to_thread(build, "all")
    world.use(isolation=replace(world.settings.isolation, library_folder=BUILT))
    await world.start(mode="core_mem")
    backend = "preload (by /etc/ld.so.preload): mode core_mem"

    def active() -> str:
        return world.api.annotations("nodes", NODE).get(names.ANN_ISOLATION, "")

    def runs() -> bool:
        return active().startswith(backend) and "arbiter" not in active()

    # The node reports it as soon as nothing contradicts it, which may be before the arbiter was started.
    await world.changes.until(lambda: runs() and children("arbiter"), "it runs", 30.0)
    (pid,) = children("arbiter")
    os.kill(pid, signal.SIGKILL)
    await world.changes.until(
        lambda: "arbiter was ended by signal 9; it is started again" in active(), "reported"
    )
    await world.changes.until(lambda: runs() and children("arbiter") not in ([], [pid]), "again", 30.0)
    await world.stop()
    assert children("arbiter") == []


def children(name: str) -> list[int]:
    """This process's children of that name."""
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):
            text = status.read_text()
            if f"Name:\t{name}\n" in text and f"PPid:\t{os.getpid()}\n" in text and "State:\tZ" not in text:
                found.append(int(status.parent.name))
    return found


async def test_damage_to_the_usage_file_harms_only_its_tenant(world: World, described: Path) -> None:
    await world.start(mode="cgpu")
    one = in_container(world, await world.run_pod("a", 2, on=0), described)
    one.usage.write_bytes(b"\xff" * 4096)
    await asyncio.to_thread(
        run_tenant, one, 'assert call("cuInit", 0) or call("cuMemAlloc_v2", None, c_size_t(MIB))'
    )
    other = in_container(world, await world.run_pod("b", 2, on=0), described)
    await asyncio.to_thread(run_tenant, other, 'context(); assert take("plain", 1000 * MIB)[0] == 0')
    world.end_pod("a")
    await world.changes.until(lambda: one.limits.stat().st_nlink == 1, "removed")
    assert other.limits.stat().st_nlink == 2
    assert world.api.annotations("nodes", NODE)[names.ANN_ISOLATION].startswith("preload")
