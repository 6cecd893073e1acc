"""The node agent of a ``dra`` node with 8 GPUs and 64 claims on each: how long the kubelet waits for a claim, memory, and processor time while idle.

The real agent with isolation, on the fake driver; kubelet and API server are the tests' scripted ones.
"""

import asyncio
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from benchmarks.budgets import Figures
from benchmarks.processes import processor_s, rss_mb
from gpushare.api.node.device import Device
from gpushare_playground.gpus import preset, write
from tests.integration.nodeagent import cluster_objects as objects
from tests.integration.nodeagent.changing import Changes
from tests.integration.nodeagent.node.scripted_dra_kubelet import DraKubelet, allocated
from tests.integration.nodeagent.scripted_api import ScriptedApi
from tests.integration.nodeagent.scripted_kubelet import ScriptedKubelet

ROOT: Final = Path(__file__).parents[2]
_BUILT: Final = ROOT / "build"
_LIBRARIES: Final = ("libcuda.so.1", "libnvidia-ml.so.1")
GPUS: Final = 8
#: Readings of its memory without a change that count as idle, and the maximum number of readings.
_QUIET, _READINGS = 8, 40
_READ_EVERY_S: Final = 0.25


@asynccontextmanager
async def _agent() -> AsyncIterator[tuple[ScriptedApi, DraKubelet, int]]:
    """A node in mode ``dra`` whose agent is registered and has published its slice; the agent's process ID."""
    folder = Path(tempfile.mkdtemp(prefix="gsb"))
    driver = folder / "driver" / "usr" / "lib64"
    driver.mkdir(parents=True)
    for name in _LIBRARIES:
        shutil.copy2(_BUILT / "fakegpu" / name, driver / name)
    _describe(folder / "cdi", driver)
    changes = Changes()
    api, devices = ScriptedApi(changes), ScriptedKubelet(folder, changes)
    kubelet = DraKubelet(devices.plugins_dir.parent / "plugins_registry", changes)
    write(folder / "gpus", preset("dgx-h200", objects.NODE))
    api.put("nodes", objects.NODE, objects.node("dra"))
    await api.start()
    await devices.start()
    (folder / "kubeconfig").write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
        f"clusters: [{{name: c, cluster: {{server: '{api.url}'}}}}]\n"
        "users: [{name: u, user: {}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"
    )
    agent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gpushare", "node-agent", "--node", objects.NODE),
        *("--kubeconfig", str(folder / "kubeconfig"), "--kubelet-dir", str(devices.plugins_dir)),
        *("--pod-resources", str(devices.resources_socket), "--metrics-listen", "127.0.0.1:0"),
        *("--isolation", "preload", "--isolation-dir", str(folder / "isolated" / "containers")),
        *("--isolation-library-dir", str(_BUILT / "isolation"), "--isolated-pods", "64"),
        *("--driver-root", str(folder / "driver"), "--cdi-dirs", str(folder / "cdi")),
        *("--container-runtime", "cdi", "--log-level", "warning"),
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "LD_LIBRARY_PATH": str(_BUILT / "fakegpu"),
            "FAKEGPU_NODE": str(folder / "gpus"),
        },
    )
    try:
        await kubelet.register()
        await changes.until(
            lambda: any(kind == "resourceslices" for kind, _ in api.objects), "a slice is published"
        )
        yield api, kubelet, agent.pid
    finally:
        if agent.returncode is None:
            agent.terminate()
        await asyncio.wait_for(agent.wait(), 10.0)
        await devices.stop()
        await api.stop()
        shutil.rmtree(folder)


def _describe(folder: Path, driver: Path) -> None:
    """The node's GPUs as NVIDIA's toolkit describes them."""
    folder.mkdir()
    mounts = [
        {"hostPath": str(driver / name), "containerPath": f"/usr/lib64/{name}", "options": ["ro", "bind"]}
        for name in _LIBRARIES
    ]
    content = {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [{"name": str(index), "containerEdits": {"deviceNodes": []}} for index in range(GPUS)],
        "containerEdits": {"mounts": mounts},
    }
    (folder / "nvidia.json").write_text(json.dumps(content))


async def _settled_mb(pid: int) -> float:
    """VmRSS once unchanged for two seconds, or the maximum of the last readings: the watchdog's samples change it."""
    seen = [rss_mb(pid)]
    while (len(seen) < _READINGS and len(set(seen[-_QUIET:])) > 1) or len(seen) < _QUIET:
        await asyncio.sleep(_READ_EVERY_S)
        seen.append(rss_mb(pid))
    return max(seen[-_QUIET:])


async def measure(per_gpu: int, idle_s: float) -> Figures:
    """Prepare ``per_gpu`` claims on each GPU, idle for ``idle_s`` seconds, and unprepare them."""
    gpus = [Device(0, one.uuid, one.total_mib).offered_as for one in preset("dgx-h200", objects.NODE).gpus]
    async with _agent() as (api, kubelet, pid):
        before_mb = await _settled_mb(pid)
        claims = [
            allocated(f"c{number}", (gpus[number % len(gpus)], "1Gi", 0), node=objects.NODE)
            for number in range(per_gpu * len(gpus))
        ]
        took_s = []
        used_s = processor_s(pid)
        for claim in claims:
            api.put("resourceclaims", f"default/{claim['metadata']['name']}", claim)
            started_s = time.perf_counter()
            await kubelet.prepare(claim)
            took_s.append(time.perf_counter() - started_s)
        spent_s = processor_s(pid) - used_s
        full_mb = await _settled_mb(pid)
        writes = _slice_writes(api)
        used_s = processor_s(pid)
        await asyncio.sleep(idle_s)
        percent = 100 * (processor_s(pid) - used_s) / idle_s
        if written := _slice_writes(api) - writes:
            raise RuntimeError(f"the slice was written {written} times while nothing happened")
        for claim in claims:
            await kubelet.unprepare(claim)
    print(
        f"  {len(claims)} claims, median {statistics.median(took_s) * 1e3:.2f} ms; {before_mb:.1f} MB before the first"
    )
    return {
        "dra_prepare_p99_ms_512_claims": (
            statistics.quantiles(took_s, n=100, method="inclusive")[98] * 1e3,
            "ms",
        ),
        "dra_prepare_cpu_ms_512_claims": (spent_s * 1e3 / len(claims), "ms"),
        "dra_nodeagent_rss_mb_512_claims": (full_mb, "MB"),
        "dra_nodeagent_idle_cpu_percent_512_claims": (percent, "%"),
    }


def _slice_writes(api: ScriptedApi) -> int:
    return sum("resourceslices" in one and one.startswith(("POST", "PUT", "DELETE")) for one in api.requests)
