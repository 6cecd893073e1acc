"""The extender as called by kube-scheduler: filter, bind, cycles, time to ready, memory.

Usage: ``python -m benchmarks.extender [--quick]``.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httptools
import uvloop

from benchmarks.api_server import node_name, pod_object
from benchmarks.processes import DEADLINE_S, api_server, rss_mb, running, wait_for_file

Figures = dict[str, tuple[float, str]]


class Caller(asyncio.Protocol):
    """A persistent connection that posts one body at a time and awaits the response."""

    def __init__(self) -> None:
        self._answer: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.WriteTransport = transport  # type: ignore[assignment]
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        body, self._parts = b"".join(self._parts), []
        answer, self._parser = self._answer, httptools.HttpResponseParser(self)
        if answer is not None and not answer.done():
            answer.set_result(body)

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError("the extender closed the connection"))

    async def post(self, verb: str, body: bytes) -> bytes:
        """The response to ``body``."""
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(
            b"POST /gpushare/%s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
            % (verb.encode(), len(body), body)
        )
        return await self._answer


async def connect(port: int) -> Caller:
    """A connection to the extender."""
    _, caller = await asyncio.get_running_loop().create_connection(Caller, "127.0.0.1", port)
    return caller


@contextmanager
def extender(kubeconfig: str) -> Iterator[tuple[int, float, int]]:
    """A started and ready extender: (port, seconds from its start to ready, pid)."""
    with tempfile.TemporaryDirectory() as folder:
        port_file = Path(folder, "port")
        started = time.perf_counter()
        arguments = ("--kubeconfig", kubeconfig, "--listen", "127.0.0.1:0", "--port-file", str(port_file))
        with running("gpushare", "scheduler", *arguments, "--log-level", "warning") as process:
            port = int(wait_for_file(port_file, process))
            uvloop.run(_ready(port))
            yield port, time.perf_counter() - started, process.pid


async def _ready(port: int) -> None:
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        status = (await reader.read()).split(b" ", 2)[1]
        writer.close()
        if status == b"200":
            return
        await asyncio.sleep(0.005)
    raise TimeoutError("the extender did not become ready")


def filter_body(number: int, units: int, nodes: list[str]) -> bytes:
    """A filter body of kube-scheduler: a pod in full and every node by name."""
    pod = pod_object(number, 1, units, None)
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": nodes}, separators=(",", ":")).encode()


def binding_body(number: int, node: str) -> bytes:
    """A bind body for one of the API server's pending pods."""
    uid = f"7b1f0000-0000-4000-8000-{number:012x}"
    return json.dumps(
        {"PodName": f"pod-{number}", "PodNamespace": "default", "PodUID": uid, "Node": node}
    ).encode()


async def filter_times_ms(port: int, nodes: int, calls: int) -> list[float]:
    """Time of each of ``calls`` filter calls over ``nodes`` names, requests of 1 to 80 units in turn."""
    names = [node_name(number) for number in range(nodes)]
    caller = await connect(port)
    bodies = [
        filter_body(10**6 + number, units, names) for number, units in enumerate((1, 4, 40, 72, 78, 80))
    ]
    for body in bodies:
        answer = json.loads(await caller.post("filter", body))
        assert (
            len(answer["NodeNames"]) + len(answer["FailedNodes"]) + len(answer["FailedAndUnresolvableNodes"])
            == nodes
        )
    times = []
    for number in range(calls):
        started = time.perf_counter()
        await caller.post("filter", bodies[number % len(bodies)])
        times.append((time.perf_counter() - started) * 1e3)
    return sorted(times)


async def bind_rate(port: int, first: int, count: int, at_once: int) -> float:
    """Binds per second to one node with ``at_once`` connections; none may be rejected."""
    queue = list(range(first, first + count))
    callers = [await connect(port) for _ in range(at_once)]

    async def work(caller: Caller) -> None:
        while queue:
            answer = await caller.post("bind", binding_body(queue.pop(), node_name(0)))
            assert answer == b'{"Error":""}', answer

    started = time.perf_counter()
    await asyncio.gather(*map(work, callers))
    return count / (time.perf_counter() - started)


async def cycle_rate(port: int, nodes: int, first: int, count: int) -> float:
    """Whole cycles of filter and bind per second, sequential as in kube-scheduler."""
    names = [node_name(number) for number in range(nodes)]
    bodies = [filter_body(first + number, 1, names) for number in range(count)]
    caller = await connect(port)
    started = time.perf_counter()
    for number, body in enumerate(bodies):
        fits = json.loads(await caller.post("filter", body))["NodeNames"]
        answer = await caller.post("bind", binding_body(first + number, fits[number % len(fits)]))
        assert answer == b'{"Error":""}', answer
    return count / (time.perf_counter() - started)


def percentile(times: list[float], share: float) -> float:
    """The quantile ``share`` of the sorted ``times``."""
    return times[min(len(times) - 1, int(len(times) * share))]


def measure(quick: bool = False) -> Figures:
    """All figures of the extender."""
    found: Figures = {}
    calls, placed, waiting = (100, 2000, 300) if quick else (600, 20_000, 1500)
    sizes = (100,) if quick else (500, 1000, 5000)
    for nodes in sizes:
        with api_server(nodes=nodes, placed=placed) as kubeconfig, extender(kubeconfig) as (port, ready_s, _):
            times = uvloop.run(filter_times_ms(port, nodes, calls))
            found[f"filter_p50_ms_{nodes}"] = (percentile(times, 0.5), "ms")
            found[f"filter_p99_ms_{nodes}"] = (percentile(times, 0.99), "ms")
            if nodes == sizes[-1]:
                found[f"ready_s_{nodes}"] = (ready_s, "s")
    for nodes in (100,) if quick else (100, 1000, 5000):
        with (
            api_server(nodes=nodes, placed=placed // 10, waiting=waiting) as kubeconfig,
            extender(kubeconfig) as (port, _, _),
        ):
            found[f"cycles_per_s_{nodes}"] = (
                uvloop.run(cycle_rate(port, nodes, placed // 10, waiting)),
                "1/s",
            )
    binds = 600 if quick else 6000
    with (
        api_server(nodes=1, waiting=binds, gpu_mib=143771, unit="128MiB") as kubeconfig,
        extender(kubeconfig) as (port, _, _),
    ):
        found["bind_per_s"] = (uvloop.run(bind_rate(port, 0, binds, 16)), "1/s")
    for pods in (1000,) if quick else (1000, 8000, 20_000):
        # Twenty pods a node, as many as a busy node of eight GPUs has.
        with api_server(nodes=pods // 20, placed=pods) as kubeconfig:
            samples = []
            # The first one reads libraries from the disk and measures its speed.
            for number in range(2 if quick else 8):
                with extender(kubeconfig) as (_, ready_s, _):
                    if number:
                        samples.append(ready_s)
            found[f"ready_s_{pods}_pods"] = (statistics.median(samples), "s")
    nodes, pods = (100, 1000) if quick else (5000, 50_000)
    with api_server(nodes=nodes, placed=pods) as kubeconfig, extender(kubeconfig) as (port, _, pid):
        uvloop.run(filter_times_ms(port, nodes, 20))
        found[f"extender_rss_mb_{pods}"] = (rss_mb(pid), "MB")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="small and fast")
    for name, (value, unit) in measure(parser.parse_args().quick).items():
        print(f"{name:<28} {value:10.3f} {unit}", flush=True)
