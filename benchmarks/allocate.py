"""The latency of ``Allocate``, and the node agent's use of its node.

The real ``gpushare node-agent`` runs as a process on a node of 8 GPUs of 141 GiB in units of 128 MiB (the longest
possible device list) with 64 pods at a time, and on one of 16 GPUs with 64 pods each, with the fake NVML of
``build/fakegpu``, against the tests' scripted kubelet and an API server that answers immediately. The kubelet admits pods
one after the other as the real one does; each ``Allocate`` call is made and timed by a process that does nothing
else; the record of each pod is written meanwhile. Memory is VmRSS: idle, probes and metrics on, before the first
pod (and, printed only, after the last). On the large node also: from the start of the process to its registration
with the kubelet, and the processor time while idle, the watchdog on.
Usage: ``python -m benchmarks.allocate [--quick]``.
"""

import argparse
import asyncio
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.processes import machine, processor_s, rss_mb
from gpushare.api import names
from gpushare.api.quantity import MemoryUnit
from gpushare.kubeletapi import deviceplugin_pb2 as pb
from gpushare.nodeagent.driver.nvml import FoundGpu
from gpushare_playground.gpus import GpuNode, preset, write
from tests.integration.nodeagent import cluster_objects as objects
from tests.integration.nodeagent.changing import Changes
from tests.integration.nodeagent.scripted_api import ScriptedApi
from tests.integration.nodeagent.scripted_kubelet import ScriptedKubelet

ROOT = Path(__file__).parent.parent
LIBRARY = ROOT / "build" / "fakegpu"
#: Idle seconds: several rounds of everything periodic.
IDLE_S = 40.0


class TimedKubelet(ScriptedKubelet):
    """Calls Allocate and times it in a separate process, because this one simulates the cluster."""

    def __init__(self, folder: Path, changes: Changes) -> None:
        super().__init__(folder, changes)
        self.took_s: list[float] = []
        self._caller: asyncio.subprocess.Process | None = None

    async def call_allocate(self, stub: Any, request: pb.AllocateRequest) -> pb.AllocateResponse:
        if self._caller is None:
            socket = self.plugins_dir / self.endpoints[names.GPU_MEM].socket
            self._caller = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "benchmarks.allocate_caller", str(socket)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
                cwd=ROOT,
            )
        caller = self._caller
        assert caller.stdin is not None
        assert caller.stdout is not None
        caller.stdin.write(" ".join(request.container_requests[0].devices_ids).encode() + b"\n")
        answer = json.loads(await asyncio.wait_for(caller.stdout.readline(), 30.0) or b"{}")
        if not answer:
            raise RuntimeError("Allocate failed; the message is above")
        self.took_s.append(answer["seconds"])
        return pb.AllocateResponse(container_responses=[pb.ContainerAllocateResponse(envs=answer["envs"])])

    async def stop(self) -> None:
        if self._caller is not None and self._caller.stdin is not None:
            self._caller.stdin.close()
            await asyncio.wait_for(self._caller.wait(), 10.0)
        await super().stop()


@contextmanager
def _folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="gsb"))
    try:
        yield made
    finally:
        shutil.rmtree(made)


async def _idle_rss_mb(pid: int) -> float:
    """VmRSS after two seconds without a change."""
    seen, quiet = rss_mb(pid), 0
    while quiet < 8:
        await asyncio.sleep(0.25)
        now = rss_mb(pid)
        quiet = quiet + 1 if now == seen else 0
        seen = now
    return seen


@dataclass
class Node:
    """A node with one agent: its simulated kubelet and API server, and the agent's process."""

    api: ScriptedApi
    kubelet: TimedKubelet
    gpus: list[FoundGpu]
    changes: Changes
    agent: asyncio.subprocess.Process
    registered_s: float
    """From the start of the agent's process to its registration."""
    living: int = 64
    """The number of pods at a time; the oldest ends when another starts."""
    units: int = 64

    async def admit(self, number: int) -> None:
        """The kubelet admits another pod; the oldest of ``living`` ends."""
        made = objects.pod(f"p{number}", objects.container("c", self.units))
        objects.decide(made, self.gpus, number % len(self.gpus), unit=MemoryUnit.MIB_128)
        self.api.put_pod(made)
        await self.kubelet.admit(made)
        if number >= self.living:
            self.kubelet.remove(f"default/p{number - self.living}")
            self.api.drop("pods", f"default/p{number - self.living}")


@asynccontextmanager
async def node(metrics_listen: str = "127.0.0.1:0", described: GpuNode | None = None) -> AsyncIterator[Node]:
    """A node, of eight GPUs unless ``described``, whose agent is registered; its probes and metrics are at ``metrics_listen``."""
    if not (LIBRARY / "libnvidia-ml.so.1").exists():
        raise RuntimeError("build/fakegpu/libnvidia-ml.so.1 is missing; run make fakegpu")
    with _folder() as folder:
        changes = Changes()
        api, kubelet = ScriptedApi(changes), TimedKubelet(folder, changes)
        described = described or preset("dgx-h200", objects.NODE)
        write(folder / "gpus", described)
        gpus = [FoundGpu(at, one.uuid, one.total_mib) for at, one in enumerate(described.gpus)]
        api.put("nodes", objects.NODE, objects.node("share"))
        await api.start()
        await kubelet.start()
        (folder / "kubeconfig").write_text(_kubeconfig(api.url))
        started_s = time.monotonic()
        agent = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gpushare", "node-agent", "--node", objects.NODE, "--unit", "128MiB"),
            *("--kubeconfig", str(folder / "kubeconfig"), "--kubelet-dir", str(kubelet.plugins_dir)),
            *("--pod-resources", str(kubelet.resources_socket), "--metrics-listen", metrics_listen),
            *("--log-level", "warning"),
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT / "src"),
                "LD_LIBRARY_PATH": str(LIBRARY),
                "FAKEGPU_NODE": str(folder / "gpus"),
            },
        )
        try:
            await changes.until(lambda: kubelet.capacity(names.GPU_MEM), "the node agent is registered", 30.0)
            registered_s = time.monotonic() - started_s
            await changes.until(lambda: api.capacity(objects.NODE).get(names.GPU_COUNT), "gpu-count", 30.0)
            yield Node(api, kubelet, gpus, changes, agent, registered_s)
        finally:
            if agent.returncode is None:
                agent.terminate()
            await asyncio.wait_for(agent.wait(), 10.0)
            await kubelet.stop()
            await api.stop()


async def _measure(pods: int) -> tuple[list[float], float, float]:
    async with node() as served:
        idle_mb = await _idle_rss_mb(served.agent.pid)
        await _admit(served, pods)
        return served.kubelet.took_s, idle_mb, rss_mb(served.agent.pid)


async def _measure_large(pods: int, per_gpu: int, idle_s: float) -> dict[str, tuple[float, str]]:
    async with node(described=preset("h200-141gb", objects.NODE, count=16)) as served:
        served.living, served.units = per_gpu * len(served.gpus), 16
        await _admit(served, served.living + pods)
        took_s = served.kubelet.took_s[served.living :]
        pid = served.agent.pid
        used_mb = await _idle_rss_mb(pid)
        before_s = processor_s(pid)
        await asyncio.sleep(idle_s)
        idle_percent = 100 * (processor_s(pid) - before_s) / idle_s
        return {
            "allocate_p99_ms_1024_pods": (_p99_ms(took_s), "ms"),
            "nodeagent_rss_mb_1024_pods": (used_mb, "MB"),
            "nodeagent_idle_cpu_percent_1024_pods": (idle_percent, "%"),
            "nodeagent_registered_s_16_gpus": (served.registered_s, "s"),
        }


async def _admit(served: Node, pods: int) -> None:
    for number in range(pods):
        await served.admit(number)
    await served.changes.until(lambda: _assigned(served.api, pods - 1), "the last pod is recorded", 30.0)


def _p99_ms(took_s: list[float]) -> float:
    return statistics.quantiles(took_s, n=100, method="inclusive")[98] * 1e3


def _assigned(api: ScriptedApi, number: int) -> bool:
    return api.annotations("pods", f"default/p{number}").get(names.ANN_ASSIGNED) == "true"


def _kubeconfig(url: str) -> str:
    return (
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
        f"clusters: [{{name: c, cluster: {{server: '{url}'}}}}]\n"
        "users: [{name: u, user: {}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"
    )


def measure(quick: bool = False) -> dict[str, tuple[float, str]]:
    """Figures of both nodes."""
    took_s, idle_mb, busy_mb = asyncio.run(_measure(100 if quick else 1000))
    print(
        f"  {len(took_s)} Allocate calls, median {statistics.median(took_s) * 1e3:.2f} ms; {busy_mb:.1f} MB after them"
    )
    large = _measure_large(20, 2, 1.0) if quick else _measure_large(300, 64, IDLE_S)
    return {
        "allocate_p99_ms": (_p99_ms(took_s), "ms"),
        "nodeagent_rss_mb": (idle_mb, "MB"),
        **asyncio.run(large),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer pods")
    print(f"Machine: {machine()}")
    for name, (value, unit) in measure(quick=parser.parse_args().quick).items():
        print(f"  {name:<34} {value:12.3f} {unit}")
