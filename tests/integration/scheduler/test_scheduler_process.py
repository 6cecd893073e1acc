"""The extender as its process runs: watches, HTTP, signals, and clear errors on bad input."""

import asyncio
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from benchmarks.api_server import Cluster, Connection, node_name, pod_object
from gpushare.api.quantity import MemoryUnit
from gpushare.httpserver.listeners import PROBES, doors
from gpushare.kube.auth.access import Access
from gpushare.scheduler.__main__ import main
from gpushare.scheduler.main import serve
from gpushare.scheduler.settings import Settings

DEADLINE_S = 60.0


class Running:
    """A served extender over a made-up cluster of 20 nodes, 40 pods with allocations and 5 pending ones."""

    def __init__(self, url: str, cluster: Cluster, http: aiohttp.ClientSession) -> None:
        self.url = url
        self.cluster = cluster
        self.http = http

    async def post(self, verb: str, body: dict[str, Any]) -> Any:
        async with self.http.post(f"{self.url}/gpushare/{verb}", json=body) as answer:
            assert answer.status == 200
            return await answer.json()

    async def metric(self, name: str) -> float:
        async with self.http.get(f"{self.url}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    async def reached(self, name: str, value: float) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while await self.metric(name) != value:
                await asyncio.sleep(0)

    async def ready(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                async with self.http.get(f"{self.url}/readyz") as answer:
                    if answer.status == 200:
                        return


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    cluster = Cluster(20, 40, 5, 3, 81920, MemoryUnit.GIB)
    loop = asyncio.get_running_loop()
    api = await loop.create_server(lambda: Connection(cluster), "127.0.0.1", 0)
    port_file = tmp_path / "port"
    access = Access(f"http://127.0.0.1:{api.sockets[0].getsockname()[1]}")
    serving = asyncio.create_task(serve(access, Settings(port=0, port_file=port_file)))
    async with asyncio.timeout(DEADLINE_S):
        while not port_file.exists():
            assert not serving.done(), await serving
            await asyncio.sleep(0)
    async with aiohttp.ClientSession() as http:
        running = Running(f"http://127.0.0.1:{port_file.read_text().strip()}", cluster, http)
        await running.ready()
        yield running
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(serving, DEADLINE_S)
    api.close()


async def test_a_pod_is_filtered_scored_and_bound_and_the_binding_is_observed(running: Running) -> None:
    names = [node_name(number) for number in range(20)]
    pod = pod_object(40, 1, 3, None)
    verdict = await running.post("filter", {"Pod": pod, "NodeNames": names})
    assert verdict["NodeNames"] == names
    scores = await running.post("prioritize", {"Pod": pod, "NodeNames": names})
    assert {entry["Host"] for entry in scores} < set(names)
    uid = pod["metadata"]["uid"]  # type: ignore[index]
    body = {"PodName": "pod-40", "PodNamespace": "default", "PodUID": uid, "Node": names[3]}
    assert await running.post("bind", body) == {"Error": ""}
    await running.reached("gpushare_scheduler_allocated_pods", 41)
    await running.reached("gpushare_scheduler_reservations", 0)
    await running.reached("gpushare_scheduler_pending_pods", 4)
    assert await running.post("bind", body) == {"Error": ""}
    assert running.cluster.bound == 1


async def test_requests_of_pending_pods_are_evaluated_before_any_filter_call(running: Running) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await running.metric("gpushare_scheduler_precomputed_requests_total"):
            await asyncio.sleep(0)
    filter_calls = await running.metric(
        'gpushare_scheduler_extender_request_duration_seconds_count{verb="filter"}'
    )
    assert filter_calls == 0


async def test_a_deleted_node_is_forgotten(running: Running) -> None:
    assert await running.metric("gpushare_scheduler_gpus") == 160
    assert await running.metric("gpushare_scheduler_memory_allocated_bytes") > 0
    deleted = json.loads(running.cluster.nodes[0])
    deleted["metadata"]["resourceVersion"] = "99999"
    async with asyncio.timeout(DEADLINE_S):
        while not running.cluster.node_watchers:
            await asyncio.sleep(0)
    for watcher in running.cluster.node_watchers:
        watcher.show(json.dumps({"type": "DELETED", "object": deleted}).encode() + b"\n")
    await running.reached("gpushare_scheduler_gpus", 152)


async def test_deleted_pods_release_their_share(running: Running) -> None:
    before = await running.metric("gpushare_scheduler_allocated_pods")
    deleted = json.loads(running.cluster.pods[0])
    deleted["metadata"]["resourceVersion"] = "99999"
    async with asyncio.timeout(DEADLINE_S):
        while not running.cluster.watchers:
            await asyncio.sleep(0)
    for watcher in running.cluster.watchers:
        watcher.show(json.dumps({"type": "DELETED", "object": deleted}).encode() + b"\n")
    await running.reached("gpushare_scheduler_allocated_pods", before - 1)


async def test_a_failing_task_stops_the_process_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: object) -> None:
        raise RuntimeError("the ledger cannot take this")

    monkeypatch.setattr("gpushare.scheduler.framework.binder.Binder.sweep", broken)
    with pytest.raises(RuntimeError, match="the ledger cannot take this"):
        await asyncio.wait_for(serve(Access("http://127.0.0.1:1"), Settings(port=0)), DEADLINE_S)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--listen", "nowhere"], "give HOST:PORT"),
        (["--listen", "127.0.0.1:99999"], "give HOST:PORT"),
        (["--health-listen", "9452"], "--health-listen 9452: give HOST:PORT, such as 127.0.0.1:9452"),
        (["--unit", "2GiB"], "--unit 2GiB: give a memory unit: 1GiB or 128MiB"),
        (["--isolated-max-pods", "0"], "give a number from 1"),
        (["--reservation-ttl", "0"], "above 0"),
        (["--lease", "ack-co-scheduler"], "--lease ack-co-scheduler: give NAMESPACE/NAME"),
        (["--lease", "a/b", "--kubeconfig", "/does/not/exist"], "/does/not/exist"),
        (
            ["--defragmentation-interval", "0"],
            "--defragmentation-interval 0: give seconds (5, 500ms, 5m) from 1 to 86400",
        ),
        (
            ["--defragmentation-max-evictions", "3"],
            "--defragmentation-max-evictions 3: give a number from 1 to 2",
        ),
        (["--kubeconfig", "/does/not/exist"], "/does/not/exist"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("gpushare scheduler: ")
    assert error.count("\n") == 1


KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: c, user: {token: t}}]
contexts: [{name: c, context: {cluster: c, user: c}}]
"""


def test_an_address_in_use_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text(KUBECONFIG)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["--kubeconfig", str(kubeconfig), "--listen", f"127.0.0.1:{port}"]) == 1
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in capsys.readouterr().err


def test_a_probe_address_in_use_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text(KUBECONFIG)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        arguments = ["--kubeconfig", str(kubeconfig), "--listen", "127.0.0.1:0", "--health-listen", address]
        assert main(arguments) == 1
    assert f"cannot listen on {address}: Address already in use" in capsys.readouterr().err


async def test_probes_can_have_their_own_address(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "gpushare.scheduler.main")
    settings = Settings(
        port=0, doors=tuple(doors(("127.0.0.1", 0), {PROBES: ("127.0.0.1", 0)})), port_file=tmp_path / "port"
    )
    serving = asyncio.create_task(serve(Access("http://127.0.0.1:1"), settings))
    async with asyncio.timeout(DEADLINE_S), aiohttp.ClientSession() as http:
        while "serving http" not in caplog.text:
            assert not serving.done(), await serving
            await asyncio.sleep(0)
        others, url = (
            record.getMessage().rpartition(" ")[2]
            for record in caplog.records
            if record.msg.startswith("%s on")
        )
        assert not url.endswith(f":{(tmp_path / 'port').read_text().strip()}")
        async with http.get(f"{url}/healthz") as answer:
            assert answer.status == 200
        async with http.get(f"{url}/readyz") as answer:
            assert (answer.status, await answer.text()) == (
                503,
                "not ready: nodes and pods and elastic quotas and ResourcePolicies not read yet\n",
            )
        async with http.post(f"{url}/gpushare/bind", json={}) as answer:
            assert answer.status == 405
        statuses = {}
        for at, path in itertools.product((url, others), ("/healthz", "/metrics", "/gpushare/decisions")):
            async with http.get(f"{at}{path}") as answer:
                statuses[at, path] = answer.status
        assert statuses == {
            (url, "/healthz"): 200,
            (url, "/metrics"): 404,
            (url, "/gpushare/decisions"): 404,
            (others, "/healthz"): 404,
            (others, "/metrics"): 200,
            # Without a token.
            (others, "/gpushare/decisions"): 401,
        }
        os.kill(os.getpid(), signal.SIGTERM)
        await serving
        with pytest.raises(aiohttp.ClientConnectionError):
            await http.get(f"{url}/healthz")


def test_an_unwritable_port_file_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kubeconfig, missing = tmp_path / "config", tmp_path / "no" / "port"
    kubeconfig.write_text(KUBECONFIG)
    assert (
        main(["--kubeconfig", str(kubeconfig), "--listen", "127.0.0.1:0", "--port-file", str(missing)]) == 1
    )
    assert capsys.readouterr().err == (
        f"gpushare scheduler: cannot write --port-file {missing}: No such file or directory\n"
    )


def test_without_an_api_server_it_reports_not_ready_and_stops_on_sigterm(tmp_path: Path) -> None:
    kubeconfig, port_file = tmp_path / "config", tmp_path / "port"
    kubeconfig.write_text(KUBECONFIG)
    arguments = ["--kubeconfig", str(kubeconfig), "--listen", "127.0.0.1:0", "--port-file", str(port_file)]
    command = [sys.executable, "-m", "gpushare", "scheduler", *arguments, "--log-format", "json"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        guard = threading.Timer(DEADLINE_S, process.kill)
        guard.start()
        try:
            assert process.stderr is not None
            log = ""
            while not ("127.0.0.1:1" in log and "nodes" in log and " in " in log):
                line = process.stderr.readline()
                assert line, log
                log += json.loads(line)["msg"] + "\n"
            with socket.create_connection(("127.0.0.1", int(port_file.read_text()))) as connection:
                connection.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                assert b"503" in connection.recv(4096)
            process.send_signal(signal.SIGTERM)
            assert "Traceback" not in process.stderr.read()
            assert process.wait(DEADLINE_S) == 0
        finally:
            guard.cancel()
            process.kill()
