"""The time and processor time of the dashboard to read the usage of 5,000 node agents.

Each agent has its own address on loopback, so that no connection is reused, and answers like the
product's own with eight GPUs and a pod on each. A page is connected meanwhile. The round ends when the figures of every GPU
have been sent; its cost is the processor time of the dashboard's process in that interval.
"""

import asyncio
import json
import tempfile
import time
from pathlib import Path

import aiohttp

from benchmarks.api_server import Cluster, described_node, node_name
from benchmarks.dashboard_page import GPU_MIB, TOKEN, Figures, served
from benchmarks.processes import processor_s
from gpushare.api.quantity import MemoryUnit
from gpushare.dashboard.data.history import Sample

NODES = 5000
_LAST_S = 600.0
_REPORTING_GPUS = Sample.__struct_fields__.index("reporting_gpus")
_GPU_LINES = 14
_CONTAINER_LINES = 10


def measure(quick: bool) -> Figures:
    """Figure → value and unit."""
    return asyncio.run(_measure(200 if quick else NODES))


async def _measure(nodes: int) -> Figures:
    answers = [_answer(number) for number in range(nodes)]
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Agent(answers), "0.0.0.0", 0, backlog=256)
    port = server.sockets[0].getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        agents = Path(folder) / "agents"
        agents.write_text(
            "".join(f"{node_name(number)} {_address(number)}:{port}\n" for number in range(nodes))
        )
        cluster = Cluster(nodes, 8 * nodes, 0, 3, GPU_MIB, MemoryUnit.GIB)
        async with (
            served(cluster, "--agents-file", str(agents)) as (url, process),
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as http,
        ):
            began_s, cost_s = time.monotonic(), processor_s(process.pid)
            async with (
                asyncio.timeout(_LAST_S),
                http.get(f"{url}api/events", read_bufsize=1 << 24, timeout=aiohttp.ClientTimeout()) as events,
            ):
                async for line in events.content:
                    delta = json.loads(line[6:]) if line.startswith(b'data: {"') else {}
                    # Totals are a row.
                    if "totals" in delta and delta["totals"][_REPORTING_GPUS] == 8 * nodes:
                        break
            files = _open_files(process.pid)
            took_s, cost_s = time.monotonic() - began_s, processor_s(process.pid) - cost_s
    server.close()
    return {
        f"dashboard_round_s_{NODES}": (took_s, "s"),
        f"dashboard_round_computed_s_{NODES}": (cost_s, "s"),
        "dashboard_round_open_files": (float(files), "files"),
        "dashboard_agent_answer_kb": (len(answers[0]) / 1000, "kB"),
    }


class _Agent(asyncio.Protocol):
    """Answers each request immediately, as the node with that address."""

    def __init__(self, answers: list[bytes]) -> None:
        self._answers = answers
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        high, middle, low = map(int, transport.get_extra_info("sockname")[0].split(".")[1:])
        self._answer = self._answers[(high - 1 << 16) + (middle << 8) + low - 1]

    def data_received(self, data: bytes) -> None:
        self._received += data
        while b"\r\n\r\n" in self._received:
            self._received = self._received.partition(b"\r\n\r\n")[2]
            self._transport.write(self._answer)


def _address(number: int) -> str:
    number += 1
    return f"127.{1 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"


def _answer(number: int) -> bytes:
    """The metrics of a node's agent: the lines that the dashboard reads, and as many others as usual."""
    lines = []
    for device in described_node(number, GPU_MIB, MemoryUnit.GIB).devices:
        ours = f'node="{node_name(number)}",gpu="{device.index}",UUID="{device.uuid}"'
        lines += [
            f"gpushare_gpu_memory_used_bytes{{{ours}}} 2147483648",
            f"gpushare_gpu_utilization_ratio{{{ours}}} 0.37",
        ]
        dcgm = (
            f'gpu="{device.index}",UUID="{device.uuid}",pci_bus_id="00000000:3B:00.0",device="nvidia{device.index}",'
            f'modelName="NVIDIA A100-SXM4-80GB",Hostname="{node_name(number)}"'
        )
        lines += [f"DCGM_FI_DEV_MEM_COPY_UTIL{{{dcgm}}} 3"] * (_GPU_LINES - 2)
        its = f'namespace="default",pod="pod-{device.index}",container="main",{ours}'
        lines += [
            f"gpushare_container_memory_used_bytes{{{its}}} 2147483648",
            f"gpushare_container_compute_used_ratio{{{its}}} 0.37",
        ]
        lines += [f"gpushare_container_memory_allocated_bytes{{{its}}} 3221225472"] * (_CONTAINER_LINES - 2)
    body = "\n".join(lines).encode() + b"\n"
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body


def _open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
