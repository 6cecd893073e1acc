"""The command itself, with the fake NVML library: discovery, health and clear messages."""

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpushare.api import names
from gpushare_playground.controlplane.ports import free_ports
from gpushare_playground.gpus import GpuNode, preset, write
from tests.integration.nodeagent.cluster_objects import NODE, container, decide, node, pod
from tests.integration.nodeagent.conftest import World
from tests.integration.nodeagent.scripted_nvml import gpu

ROOT = Path(__file__).parents[4]
LIBRARY = ROOT / "build" / "fakegpu"
#: A GPU's metrics, except its energy: the fake driver does not count that.
READINGS = {
    f"DCGM_FI_DEV_{name}"
    for name in (
        *("GPU_UTIL", "MEM_COPY_UTIL", "FB_USED", "FB_FREE", "GPU_TEMP", "POWER_USAGE"),
        *("SM_CLOCK", "MEM_CLOCK", "ENC_UTIL", "DEC_UTIL", "PCIE_REPLAY_COUNTER"),
    )
}


def library() -> Path:
    if not (LIBRARY / "libnvidia-ml.so.1").exists():
        if os.environ.get("CI") == "true":
            pytest.fail("build/fakegpu/libnvidia-ml.so.1 is not built; make fakegpu builds it")
        pytest.skip("needs the stand-in driver: make fakegpu")
    return LIBRARY


@asynccontextmanager
async def command(
    world: World, gpus: Path, *options: str, driver: Path | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """``gpushare node-agent`` as its user starts it; ``driver`` is the folder where its library is looked for."""
    kubeconfig = world.folder / "kubeconfig"
    kubeconfig.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
        f"clusters: [{{name: c, cluster: {{server: '{world.api.url}'}}}}]\n"
        "users: [{name: u, user: {}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gpushare", "node-agent", "--node", NODE, "--kubeconfig", str(kubeconfig)),
        *("--kubelet-dir", str(world.kubelet.plugins_dir)),
        *("--pod-resources", str(world.kubelet.resources_socket), "--health-period", "0.05"),
        *("--isolation-dir", str(world.settings.isolation.folder)),
        *options,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "LD_LIBRARY_PATH": str(driver or library()),
            "FAKEGPU_NODE": str(gpus),
        },
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.communicate(), 60.0)


def described(world: World, what: GpuNode) -> Path:
    path = world.folder / "gpus"
    write(path, what)
    return path


async def test_a_v100_of_the_fake_driver_is_discovered_shared_and_served(world: World) -> None:
    what = preset("v100-16384", NODE)
    world.api.put("nodes", NODE, node("share"))
    async with command(world, described(world, what)):
        await world.changes.until(lambda: world.kubelet.is_served(names.GPU_MEM), "served", 30.0)
        assert world.kubelet.capacity(names.GPU_MEM) == 16
        made = pod("a", container("c", 4))
        decide(made, [replace(gpu(0), uuid=what.gpus[0].uuid, total_mib=16384)], 0)
        world.api.put_pod(made)
        envs = (await world.kubelet.admit(made)).envs["c"]
        assert (envs[names.ENV_MEM_CONTAINER], envs[names.ENV_MEM_DEVICE]) == ("4", "16")
        assert envs[names.ENV_VISIBLE_DEVICES] == what.gpus[0].uuid
        await world.until_assigned("a")
        await world.changes.until(
            lambda: names.ANN_DEVICES in world.api.annotations("nodes", NODE), "described", 30.0
        )
        annotation = world.api.annotations("nodes", NODE)[names.ANN_DEVICES]
        assert what.gpus[0].model in annotation
        assert '"pci":"00000000:3B:00.0"' in annotation
        assert '"mib":16384' in annotation
        # The driver's own reserve (224 MiB) is not usable where programs are held to their shares.
        world.api.label_node(NODE, {names.LABEL_MODE: "cgpu"})
        await world.changes.until(
            lambda: '"mib":16160' in world.api.annotations("nodes", NODE)[names.ANN_DEVICES]
        )


async def test_a_fault_is_detected_live_and_so_is_its_end(world: World) -> None:
    what = preset("core-mem-4", NODE)
    world.api.put("nodes", NODE, node("core_mem"))
    path = described(world, what)
    async with command(world, path):
        await world.changes.until(lambda: world.kubelet.allocatable(names.GPU_CORE) == 400, "served", 30.0)
        broken = replace(what, gpus=(*what.gpus[:3], replace(what.gpus[3], fault="lost")))
        write(path, broken)
        await world.changes.until(lambda: world.kubelet.allocatable(names.GPU_CORE) == 300, "one is lost")
        write(path, what)
        await world.changes.until(
            lambda: world.kubelet.allocatable(names.GPU_CORE) == 400, "it is back", 40.0
        )


async def test_an_xid_of_the_fake_driver_takes_its_gpu_out_of_service(world: World) -> None:
    what = preset("core-mem-4", NODE)
    world.api.put("nodes", NODE, node("share"))
    path = described(world, what)
    async with command(world, path, "--xid-recovery", "0.2"):
        await world.changes.until(lambda: world.kubelet.allocatable(names.GPU_MEM) == 60, "served", 30.0)
        write(path, replace(what, gpus=(replace(what.gpus[0], xids={48: 1}), *what.gpus[1:])))
        await world.changes.until(lambda: world.api.reported("GPUUnhealthy"), "the XID is reported")
        assert what.gpus[0].uuid in world.api.reported("GPUUnhealthy")[0]["note"]
        await world.changes.until(lambda: world.api.reported("GPURecovered"), "it was quiet")


async def test_a_driver_under_the_nodes_root_may_appear_later_disappear_and_return(world: World) -> None:
    [port] = free_ports(1)
    there, folder = library() / "libnvidia-ml.so.1", world.folder / "host/usr/lib64"
    folder.mkdir(parents=True)
    installed = folder / "libnvidia-ml.so.1"

    def install() -> None:
        """At once: an agent that finds half of it reports another fault."""
        shutil.copy(there, folder / "newer")
        (folder / "newer").rename(installed)

    world.api.put("nodes", NODE, node("share"))
    async with command(
        world,
        described(world, preset("t4", NODE)),
        *("--driver-root", str(world.folder / "host"), "--metrics-listen", f"127.0.0.1:{port}"),
        driver=world.folder / "nowhere",
    ):
        await world.changes.until(lambda: world.api.reported("DriverNotFound"), "no driver yet", 30.0)
        # It does all that an agent can do there, so no roll-out waits for it.
        assert (await get(port, "/readyz"))[0] == 200
        assert 'gpushare_nodeagent_degraded{reason="DriverNotFound"} 1' in (await get(port, "/metrics"))[1]
        install()
        await world.changes.until(lambda: world.kubelet.allocatable(names.GPU_MEM) == 15, "served", 40.0)
        await world.changes.until(lambda: world.api.reported("DriverReady"), "reported")
        installed.unlink()
        await world.changes.until(lambda: world.kubelet.allocatable(names.GPU_MEM) == 0, "removed")
        assert world.kubelet.capacity(names.GPU_MEM) == 15
        install()
        await world.changes.until(lambda: world.kubelet.allocatable(names.GPU_MEM) == 15, "back", 40.0)
        await world.changes.until(lambda: len(world.api.reported("DriverReady")) == 2, "reported again")
        # It disappeared and returned; nothing is reported about its GPU in addition.
        assert len(world.api.reported("DriverNotFound")) == 2
        assert not world.api.reported("GPUUnhealthy")


@pytest.mark.parametrize("fault", ["driver-not-loaded", "version-mismatch"])
async def test_a_driver_failing_under_a_running_agent_is_one_event_not_one_per_gpu(
    world: World, fault: str
) -> None:
    world.api.put("nodes", NODE, node("share"))
    whole = preset("mixed", NODE)
    file = described(world, whole)
    async with command(world, file):
        await world.changes.until(lambda: world.kubelet.is_served(names.GPU_MEM), "served", 30.0)
        for times in (1, 2):
            write(file, replace(whole, fault=fault))
            await world.changes.until(
                lambda: len(world.api.reported("DriverFailed")) == times,  # noqa: B023
                "failed",
                30.0,
            )
            write(file, whole)
            await world.changes.until(lambda: len(world.api.reported("DriverReady")) == times, "works", 30.0)  # noqa: B023
        assert not world.api.reported("GPUUnhealthy")


async def test_probes_and_metrics_are_served(world: World) -> None:
    [port] = free_ports(1)
    world.api.put("nodes", NODE, node("share"))
    async with command(world, described(world, preset("t4", NODE)), "--metrics-listen", f"127.0.0.1:{port}"):
        await world.changes.until(lambda: world.kubelet.is_served(names.GPU_MEM), "served", 30.0)
        assert (await get(port, "/healthz"))[0] == 200
        # The kubelet has its list before its response to the registration has arrived.
        await until_answered(port, "/readyz", 200, "")
        assert (await get(port, "/nowhere"))[0] == 404
        status, text = await get(port, "/metrics")
        families = {one.name: one for one in text_string_to_metric_families(text)}
        assert status == 200
        [healthy] = [
            one for one in families["gpushare_nodeagent_devices"].samples if one.labels["health"] == "Healthy"
        ]
        assert (healthy.labels["resource"], healthy.value) == (names.GPU_MEM, 15.0)
        assert families["gpushare_nodeagent_registrations"].samples[0].value == 1.0
        readings: set[str] = set()
        async with asyncio.timeout(20):
            while not readings >= READINGS:
                found = text_string_to_metric_families((await get(port, "/metrics/dcgm"))[1])
                readings = {one.name for one in found if one.samples}
        world.api.refusing = True
        world.changes.notify()
        # The watch of the node ends as well, maybe sooner.
        await until_answered(port, "/readyz", 503, "pods of this node not watched: /api/v1/pods: ")


async def until_answered(port: int, path: str, status: int, text: str) -> None:
    answer = (0, "")
    try:
        async with asyncio.timeout(30):
            while answer[0] != status or text not in answer[1]:
                answer = await get(port, path)
    except TimeoutError:
        raise AssertionError(f"{path} does not come to {status} {text!r}: {answer}") from None


async def get(port: int, path: str) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    async with asyncio.timeout(5):
        answer = (await reader.read()).decode()
    writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split()[1]), body
