"""Metrics and probes as their readers get them."""

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpushare.api import names
from gpushare.httpserver.authorization import Readers
from gpushare.kube.auth.token_reviews import Caller
from gpushare.nodeagent.observability.metrics import Metrics
from gpushare.nodeagent.observability.probes import Probes


def test_the_exposition_can_be_read_by_prometheus() -> None:
    metrics = Metrics()
    metrics.allocations.add(names.GPU_MEM, amount=2)
    metrics.reconciled.add()
    metrics.devices.set(names.GPU_MEM, "Healthy", value=8984)
    for seconds in (0.0005, 0.003, 0.01, 30.0):
        metrics.allocate_seconds.observe(names.GPU_MEM, seconds)
    families = {one.name: one for one in text_string_to_metric_families(metrics.exposition().decode())}
    assert families["gpushare_nodeagent_allocations"].samples[0].value == 2.0
    assert families["gpushare_nodeagent_reconciled_allocations"].samples[0].value == 1.0
    assert families["gpushare_nodeagent_devices"].samples[0].labels == {
        "resource": names.GPU_MEM,
        "health": "Healthy",
    }
    histogram = families["gpushare_nodeagent_allocate_duration_seconds"]
    assert histogram.type == "histogram"
    buckets = {one.labels["le"]: one.value for one in histogram.samples if one.name.endswith("_bucket")}
    assert (buckets["0.001"], buckets["0.01"], buckets["5.0"], buckets["+Inf"]) == (1.0, 3.0, 3.0, 4.0)
    assert metrics.allocation_failures.value(names.GPU_MEM) == 0.0


def test_a_sum_of_seconds_grows_by_every_call_however_large_it_is() -> None:
    metrics = Metrics()
    metrics.allocate_seconds.observe(names.GPU_MEM, 123456.0)
    before = sum_of(metrics)
    metrics.allocate_seconds.observe(names.GPU_MEM, 0.002)
    assert sum_of(metrics) - before == pytest.approx(0.002)


def sum_of(metrics: Metrics) -> float:
    families = text_string_to_metric_families(metrics.exposition().decode())
    return next(
        one.value for family in families for one in family.samples if one.name.endswith("_seconds_sum")
    )


class Knows:
    """An API server that accepts every token, and lets one read."""

    async def caller_of(self, token: str, audience: str) -> Caller | None:
        return Caller(username=token)

    async def may_get(self, caller: Caller, path: str) -> bool:
        return (caller.username, path) == ("good", "/gpushare/usage")


async def answer(request: bytes, missing: list[str]) -> str:
    def usage(query: str) -> bytes:
        if query:
            raise ValueError("no such window")
        return b"{}"

    figures = {"/metrics": lambda: b"x 1\n", "/metrics/dcgm": lambda: b"X 2\n"}
    probes = Probes(lambda: missing, figures, {"/usage": usage}, Readers(Knows()))
    listener = await probes.start("127.0.0.1", 0)
    async with listener:
        reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
        writer.write(request)
        writer.write_eof()
        async with asyncio.timeout(5):
            read = (await reader.read()).decode()
        writer.close()
        await writer.wait_closed()
    return read


@pytest.mark.parametrize(
    ("request_line", "missing", "status", "body"),
    [
        (b"GET /healthz HTTP/1.1", ["all"], "200 OK", "ok\n"),
        (b"GET /readyz HTTP/1.1", [], "200 OK", "ok\n"),
        (b"GET /readyz?verbose HTTP/1.1", ["pods", "node"], "503 Service Unavailable", "pods\nnode\n"),
        (b"GET /metrics HTTP/1.1", [], "200 OK", "x 1\n"),
        (b"HEAD /metrics HTTP/1.1", [], "200 OK", ""),
        (b"GET /metrics/dcgm HTTP/1.1", [], "200 OK", "X 2\n"),
        (
            b"GET / HTTP/1.1",
            [],
            "404 Not Found",
            "there are /healthz, /readyz, /metrics, /metrics/dcgm, /usage\n",
        ),
        (b"GET /usage HTTP/1.1\r\nX-Gpushare-Token: good", [], "200 OK", "{}"),
        (b"GET /usage?window=x HTTP/1.1\r\nx-gpushare-token:good", [], "400 Bad Request", "no such window\n"),
        (
            b"GET /usage HTTP/1.1\r\nX-Gpushare-Token: other",
            [],
            "403 Forbidden",
            "other may not get the non-resource URL /gpushare/usage\n",
        ),
        (b"POST /healthz HTTP/1.1", [], "405 Method Not Allowed", "GET only\n"),
        (b"nonsense", [], "400 Bad Request", "not HTTP\n"),
    ],
)
async def test_probes_answer(request_line: bytes, missing: list[str], status: str, body: str) -> None:
    read = await answer(request_line + b"\r\nHost: x\r\n\r\n", missing)
    assert read.startswith(f"HTTP/1.1 {status}\r\n")
    assert read.endswith(f"\r\n\r\n{body}")


async def test_usage_is_for_authorized_readers() -> None:
    read = await answer(b"GET /usage HTTP/1.1\r\nHost: x\r\n\r\n", [])
    assert read.startswith("HTTP/1.1 401 Unauthorized\r\n")
    assert read.endswith("as the kubectl plugin does\n")


async def test_a_request_that_never_ends_is_cut_off() -> None:
    assert await answer(b"GET /healthz HTTP/1.1\r\n" + b"x" * 20000, []) == ""
