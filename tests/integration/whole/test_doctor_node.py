"""``gpushare doctor node`` on a node of the playground: no fault at first, and each fault that a test causes
is reported.
"""

import json
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.nodeagent.isolation.storage.files import OPTIONAL
from gpushare_playground import gpus
from tests.integration.whole.world import CHECKOUT, DRIVER, World, run, shared_node, until

pytestmark = pytest.mark.asyncio(loop_scope="session")
NODES = (shared_node("first", "mixed"),)
LIBRARIES = CHECKOUT / "build" / "isolation"
CDI = {"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": [{"name": "all", "containerEdits": {}}]}


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """The node's files apart from the kubelet's folders: the playground's nodes have this machine's."""
    for name in ("nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1", "nvidia2", "nvidia3"):
        file = tmp_path / "dev" / name
        file.parent.mkdir(exist_ok=True)
        file.touch()
    (tmp_path / "etc/containerd").mkdir(parents=True)
    (tmp_path / "etc/containerd/config.toml").write_text("version = 3\n")
    (tmp_path / "var/run/cdi").mkdir(parents=True)
    (tmp_path / "var/run/cdi/nvidia.json").write_text(json.dumps(CDI))
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cgroup.controllers").write_text("cpu memory\n")
    return tmp_path


async def doctor(
    cluster: World, host: Path, *options: str, driver: Path = DRIVER, libraries: Path = LIBRARIES
) -> dict[tuple[str, str], str]:
    """(check, state) → message, of all that is not ok; without the clock, which is this machine's own."""
    root = cluster.playground.state / "nodes" / "first"
    command = [sys.executable, "-m", "gpushare", "doctor", "node", "-o", "json", "--host-root", str(host)]
    command += ["--kubelet-root", str(root), "--kubelet-dir", str(root / "device-plugins")]
    command += ["--isolation-library-dir", str(libraries), *options]
    ran = await run(
        *command,
        env={"LD_LIBRARY_PATH": str(driver), "FAKEGPU_NODE": str(cluster.playground.gpu_file("first"))},
    )
    assert not ran.err, ran.err
    document = json.loads(ran.out)
    assert ran.code == {"ok": 0, "unknown": 0, "warning": 1, "fault": 2}[document["worst"]]
    return {
        (one["check"], one["state"]): f"{one['subject']}: {one['message']} → {one['suggestion']}"
        for one in document["findings"]
        if one["state"] != "ok" and one["check"] not in ("clock", "disk")
    }


async def test_a_sound_node_has_no_fault(cluster: World, host: Path) -> None:
    assert await doctor(cluster, host) == {}


async def test_a_driver_that_does_not_run_or_is_missing_is_reported(
    cluster: World, host: Path, tmp_path: Path
) -> None:
    file = cluster.playground.gpu_file("first")
    good = gpus.preset("mixed", "first")
    gpus.write(file, replace(good, fault="driver-not-loaded"))
    found = await doctor(cluster, host)
    assert "Driver Not Loaded" in found["driver", "fault"]
    assert "kernel module is not loaded. Run `nvidia-smi` as root" in found["driver", "fault"]
    assert set(found) == {
        ("driver", "fault"),
        ("gpus", "unknown"),
        ("device-nodes", "unknown"),
        ("isolation", "unknown"),
    }
    gpus.write(file, replace(good, gpus=(replace(good.gpus[0], fault="lost"), *good.gpus[1:])))
    found = await doctor(cluster, host)
    assert "GPU 0" in found["gpus", "fault"]
    gpus.write(file, good)
    found = await doctor(cluster, host, driver=tmp_path / "none")
    assert ("driver", "fault") in found


async def test_what_the_node_lacks_is_reported(cluster: World, host: Path, tmp_path: Path) -> None:
    (host / "dev/nvidia1").unlink()
    (host / "var/run/cdi/nvidia.json").write_text("{")
    (host / "sys/fs/cgroup/cgroup.controllers").rename(host / "sys/fs/cgroup/memory")
    found = await doctor(cluster, host, libraries=tmp_path / "none")
    assert found["device-nodes", "fault"].startswith("/dev: there is no nvidia1 →")
    assert "nvidia.json" in found["containers", "warning"]
    assert "no CDI spec of NVIDIA exists" in found["containers", "fault"]
    assert "version 1" in found["cgroups", "warning"]
    assert "libcuda.so.1" in found["isolation", "warning"]
    assert len(found) == 5


async def test_libraries_that_enforce_nothing_are_reported(
    cluster: World, host: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "libraries"
    folder.mkdir()
    for name in ("arbiter", *OPTIONAL.values()):
        shutil.copy(LIBRARIES / name, folder)
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        shutil.copy(DRIVER / name, folder)  # which enforce no limit
        shutil.copy(DRIVER / name, folder / name.removesuffix(".1"))
    found = await doctor(cluster, host, libraries=folder)
    assert "do not work with this driver" in found["isolation", "fault"]


async def test_a_stopped_kubelet_and_agent_are_reported(cluster: World, host: Path) -> None:
    await cluster.playground.parts["node-agent first"].stop()
    found = await doctor(cluster, host)
    assert set(found) == {("agent", "warning")}
    cluster.playground.parts["kubelet first"].kill(signal.SIGSTOP)
    try:
        assert "DEADLINE_EXCEEDED" in (await doctor(cluster, host, "--timeout", "1s"))["kubelet", "fault"]
    finally:
        cluster.playground.parts["kubelet first"].kill(signal.SIGCONT)
    cluster.playground.parts["node-agent first"].start()
    await cluster.playground.node_ready("first")

    async def well() -> bool:
        return await doctor(cluster, host) == {}

    await until(well, "the node is well")
    found = await doctor(cluster, host, "--kubelet-root", str(host), "--kubelet-dir", str(host))
    assert "no kubelet.sock" in found["kubelet", "fault"] or "no socket" in found["kubelet", "fault"]
