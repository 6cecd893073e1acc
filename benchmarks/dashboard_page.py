"""The dashboard with 5,000 nodes of eight GPUs in a real Chromium: first paint, main thread time of updates, memory.

The server is the product's own process over the API server that answers immediately. First paint is measured from the start of the
navigation to the message after the frame with the whole heat map, after login; the median and the maximum of some loads. An update
is the processor time of the page's main thread, all tasks together; pods are bound one by one, a node is removed and added, and all
nodes change at once, for which the longest task is a figure, too. The same is measured on the view of nodes, sorted by allocated
memory, and on that of pending pods, with 1,000 pods whose reasons change each time. Memory is that of the tab's process alone
(private, ``smaps_rollup``), and with its part of shared memory (PSS).
"""

import asyncio
import json
import shutil
import statistics
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

from benchmarks.api_server import Cluster, Connection, described_node, node_name, node_object
from benchmarks.processes import running, wait_for_file
from gpushare.api import names
from gpushare.api.allocation.allocation import allocate_on
from gpushare.api.allocation.annotations import Stamp, allocation_annotations
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.request import ContainerKind, ContainerRequest
from gpushare.api.request.request import Request as GpuRequest

if TYPE_CHECKING:
    import subprocess

NODES, PLACED = 5000, 40000
GPU_MIB = 81920
#: The number of pending pods that the page shows.
WAITING = 1000
TOKEN = "0123456789abcdef0123456789abcdef"
Figures = dict[str, tuple[float, str]]
_WATCH = """
window.seen = [];
let notify = () => undefined, last = 0;
window.has = (what) => seen.some(([, name]) => name === `gpushare:${what}`);
new PerformanceObserver((list) => {
  for (const one of list.getEntries()) seen.push([one.entryType, one.name, one.startTime, one.duration]);
  last = performance.now();
  if (has("apply") && has("draw")) notify();
}).observe({ entryTypes: ["measure", "longtask", "mark"] });
// One promise: repeated polls would count among the page's own tasks.
window.updated = () => new Promise((resolve) => { notify = resolve; if (has("apply") && has("draw")) resolve(); });
window.settled = (quiet_ms) => new Promise((resolve) => {
  const look = () => (performance.now() - last > quiet_ms ? resolve() : setTimeout(look, quiet_ms / 2));
  updated().then(look);
});
"""


def measure(quick: bool) -> Figures:
    """Figure → value and unit."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        raise RuntimeError("no Chromium on PATH; install it with: scripts/install-browser")
    nodes, placed, loads, updates = (200, 1000, 2, 5) if quick else (NODES, PLACED, 7, 40)
    return asyncio.run(_measure(program, nodes, placed, loads, updates))


async def _measure(program: str, nodes: int, placed: int, loads: int, updates: int) -> Figures:
    from playwright.async_api import async_playwright

    cluster = Cluster(nodes, placed, 3 * updates, 3, GPU_MIB, MemoryUnit.GIB)
    line = _Line()
    async with (
        _scheduler_of(line) as scheduler,
        served(cluster, "--scheduler", scheduler) as (url, server),
        async_playwright() as playwright,
    ):
        browser = await playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        )
        context = await browser.new_context(viewport={"width": 1440, "height": 900})
        page = await context.new_page()
        await page.add_init_script(_WATCH)
        await page.goto(f"{url}#token={TOKEN}")
        await _painted(page)
        paints = []
        for _ in range(loads):
            await page.goto("about:blank")
            await page.goto(url)
            paints.append(await _painted(page))
        figures = {
            "dashboard_first_paint_ms_40000": (statistics.median(paints), "ms"),
            "dashboard_first_paint_most_ms_40000": (max(paints), "ms"),
        }
        session = await context.new_cdp_session(page)
        await session.send("Performance.enable", {"timeDomain": "threadTicks"})
        numbers = iter(range(3 * updates))

        def bind() -> None:
            number = next(numbers)
            _bind(cluster, placed + number, number % nodes)

        figures["dashboard_update_most_ms_40000"] = (
            max([await _update(page, session, bind) for _ in range(updates)]),
            "ms",
        )
        moved = [
            await _update(page, session, partial(_show, cluster, nodes - 1, kind))
            for _ in range(updates // 8 + 1)
            for kind in ("DELETED", "ADDED")
        ]
        figures["dashboard_update_node_most_ms_40000"] = (max(moved), "ms")
        figures |= await _all_at_once(
            page, session, cluster, nodes, f"{url}api/node?name={node_name(nodes - 1)}"
        )
        await session.send("HeapProfiler.collectGarbage")
        private, proportional = _renderer_mb()
        figures["dashboard_tab_private_mb_40000"] = (private, "MB")
        figures["dashboard_tab_pss_mb_40000"] = (proportional, "MB")
        heap = await session.send("Runtime.getHeapUsage")
        figures["dashboard_tab_heap_mb_40000"] = (
            (heap["totalSize"] + heap.get("backingStorageSize", 0)) / 1e6,
            "MB",
        )
        figures["dashboard_server_rss_mb_40000"] = (_rss_mb(server.pid), "MB")
        await _open(page, "#/nodes")
        await page.get_by_role("button", name="Memory allocated").click()
        figures["dashboard_update_nodes_most_ms_40000"] = (
            max([await _update(page, session, bind) for _ in range(updates // 2)]),
            "ms",
        )
        line.pods = WAITING
        await _open(page, "#/waiting")
        await page.get_by_text("1,000 pods, page 1 of 10").wait_for()
        figures["dashboard_update_waiting_most_ms_1000"] = (
            max([await _update(page, session, lambda: (line.turn(), bind())) for _ in range(updates // 4)]),
            "ms",
        )
        await browser.close()
    return figures


@asynccontextmanager
async def served(cluster: Cluster, *options: str) -> AsyncIterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """The product's own process over that cluster: the page's address, and the process."""
    loop = asyncio.get_running_loop()
    api = await loop.create_server(lambda: Connection(cluster), "127.0.0.1", 0)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "token").write_text(TOKEN)
        (Path(folder) / "config").write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "a",
                    "clusters": [
                        {
                            "name": "a",
                            "cluster": {"server": f"http://127.0.0.1:{api.sockets[0].getsockname()[1]}"},
                        }
                    ],
                    "users": [{"name": "a", "user": {}}],
                    "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
                }
            )
        )
        port_file = Path(folder) / "port"
        command = ["gpushare", "dashboard", "--kubeconfig", f"{folder}/config", "--listen", "127.0.0.1:0"]
        command += ["--token-file", f"{folder}/token", "--port-file", str(port_file), *options]
        with running(*command) as process:
            port = await asyncio.to_thread(wait_for_file, port_file, process)
            while not await _is_ready(int(port)):  # noqa: ASYNC110 -- another process
                await asyncio.sleep(0.1)
            yield f"http://127.0.0.1:{port}/", process
        api.close()


class _Line:
    """The pending pods of the scheduler; the figures in the reasons change with every turn."""

    def __init__(self) -> None:
        self.pods = 0
        self._turns = 0

    def turn(self) -> None:
        self._turns += 1

    def body(self) -> bytes:
        """The scheduler's response."""
        free = 4999 - self._turns
        pods = [
            {
                "key": f"team-{number % 7}/train-{number:05x}",
                "uid": f"w{number}",
                "since": 1767225600.0 + number,
                "asks": "aliyun.com/gpu-mem: 72, aliyun.com/gpu-core.percentage: 50",
                "category": "memory",
                "reason": f"no single GPU has 72 GiB free on {free:,} nodes; node-{number:05} has 71 GiB",
                "suggestion": f"1 GiB more free on one GPU of node-{number:05}",
            }
            for number in range(self.pods)
        ]
        return json.dumps({"scheduler": {"name": "extender"}, "waiting": pods}).encode()


@asynccontextmanager
async def _scheduler_of(line: _Line) -> AsyncIterator[str]:
    """The address of a scheduler that lists pending pods."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = line.body()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def _open(page: Any, address: str) -> None:
    await page.evaluate("hash => { seen.length = 0; location.hash = hash }", address)
    await _until(page, "has('draw')")


async def _is_ready(port: int) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return b" 200 " in answer[:20]


async def _painted(page: Any) -> float:
    await _until(page, "performance.getEntriesByName('gpushare:painted').length > 0")
    found: float = await page.evaluate("performance.getEntriesByName('gpushare:painted')[0].startTime")
    await _until(page, "document.querySelector('#link')?.dataset.state === 'live'")
    return found


async def _until(page: Any, expression: str) -> None:
    """Polled from outside: the page's policy forbids waiting inside."""
    async with asyncio.timeout(60):
        while not await page.evaluate(expression):  # noqa: ASYNC110 -- another process
            await asyncio.sleep(0.05)


async def _update(page: Any, session: Any, change: Any) -> float:
    """The main thread's processor time for one change, in ms."""
    await page.evaluate("seen.length = 0")
    before = await _task_s(session)
    change()
    async with asyncio.timeout(60):
        await page.evaluate("updated()")
    return (await _task_s(session) - before) * 1000


async def _all_at_once(page: Any, session: Any, cluster: Cluster, nodes: int, shown: str) -> Figures:
    """The first GPU of every node is cordoned and uncordoned: once for the sum of all tasks, and once for the longest."""

    async def change(cordoned: str) -> None:
        await page.evaluate("seen.length = 0")
        for number in range(nodes):
            _show(cluster, number, "MODIFIED", cordoned)
        while await asyncio.to_thread(_first_is_cordoned, shown) != bool(cordoned):  # noqa: ASYNC110 -- another process
            await asyncio.sleep(0.1)
        async with asyncio.timeout(60):
            await page.evaluate("settled(1500)")

    before = await _task_s(session)
    await change("0")
    computed_ms = (await _task_s(session) - before) * 1000
    browser = page.context.browser
    await browser.start_tracing(page=page, categories=["toplevel"])
    await change("")
    trace = json.loads(await browser.stop_tracing())["traceEvents"]
    mains = {
        (one["pid"], one["tid"])
        for one in trace
        if one["name"] == "thread_name" and one["args"]["name"] == "CrRendererMain"
    }
    tasks = [
        one["tdur"] / 1000
        for one in trace
        if one["name"].endswith("RunTask") and (one["pid"], one["tid"]) in mains and "tdur" in one
    ]
    return {
        "dashboard_update_all_nodes_ms_40000": (computed_ms, "ms"),
        "dashboard_update_all_nodes_task_most_ms_40000": (max(tasks), "ms"),
    }


def _first_is_cordoned(url: str) -> bool:
    """Whether the server shows the first GPU of a node as cordoned."""
    request = Request(url, headers={"Authorization": f"Bearer {TOKEN}"})
    with urlopen(request, timeout=60) as answer:
        return bool(json.load(answer)["gpus"][0]["cordoned"])


async def _task_s(session: Any) -> float:
    """The main thread's processor time in tasks, in seconds."""
    metrics = await session.send("Performance.getMetrics")
    found: float = next(one["value"] for one in metrics["metrics"] if one["name"] == "TaskDuration")
    return found


def _bind(cluster: Cluster, pod: int, node: int) -> None:
    described = described_node(node, GPU_MIB, MemoryUnit.GIB)
    request = GpuRequest(3, 0, (ContainerRequest("main", ContainerKind.APP, 0, 3, 0),))
    annotations = allocation_annotations(
        allocate_on(described, described.devices[0], request), request, Stamp(1, assigned=True)
    )
    body = {"metadata": {"annotations": annotations}, "target": {"name": described.name}}
    cluster.bind(f"pod-{pod}", json.dumps(body).encode())


def _show(cluster: Cluster, number: int, kind: str, cordoned: str = "") -> None:
    """Send a node to the watches; ``cordoned``: indices of GPUs."""
    cluster.version += 1
    shown: Any = node_object(described_node(number, GPU_MIB, MemoryUnit.GIB), cluster.version)
    if cordoned:
        shown["metadata"]["annotations"][names.ANN_CORDONED] = cordoned
    line = json.dumps({"type": kind, "object": shown}).encode() + b"\n"
    for watcher in cluster.node_watchers:
        watcher.show(line)


def _renderer_mb() -> tuple[float, float]:
    """Private memory and PSS of the largest renderer, which is the tab."""
    found = [(0.0, 0.0)]
    for folder in Path("/proc").iterdir():
        try:
            if b"--type=renderer" not in (folder / "cmdline").read_bytes():
                continue
            rollup = dict(
                line.split(":", 1) for line in (folder / "smaps_rollup").read_text().splitlines()[1:]
            )
        except (OSError, ValueError):
            continue
        kib = {key: int(value.split()[0]) for key, value in rollup.items()}
        found.append(((kib["Private_Dirty"] + kib["Private_Clean"]) * 1024 / 1e6, kib["Pss"] * 1024 / 1e6))
    return max(found)


def _rss_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))) * 1024 / 1e6
