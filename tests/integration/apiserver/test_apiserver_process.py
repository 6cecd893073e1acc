"""The API server as a process: its ready line, its files, its shutdown, and many objects at once."""

import asyncio
import json
import signal
import socket
import stat
import sys

import pytest
import yaml

from tests.integration.apiserver.conftest import COMMAND_S

PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
async def start(tmp_path):
    running = []

    async def run(*arguments: str):
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "gpushare_playground.apiserver",
            "--dir",
            str(tmp_path / "state"),
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        running.append(process)
        return process

    yield run
    for process in running:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_it_reports_when_it_is_ready_and_writes_private_kubeconfigs(start, tmp_path):
    process = await start("--user", "scheduler", "--port", "0")
    async with asyncio.timeout(COMMAND_S):
        state, url, path = (await process.stdout.readline()).decode().split()
    assert state == "ready"
    for name in ("kubeconfig", "scheduler.kubeconfig"):
        file = tmp_path / "state" / name
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        config = yaml.safe_load(file.read_text())
        assert config["current-context"] == "playground"
        assert config["clusters"][0]["cluster"]["server"] == url
    assert path == str(tmp_path / "state" / "kubeconfig")
    assert [one.name for one in (tmp_path / "state").glob(".*")] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_stops_cleanly_on_a_signal(start, number):
    process = await start()
    async with asyncio.timeout(COMMAND_S):
        await process.stdout.readline()
        process.send_signal(number)
        assert await process.wait() == 0
        assert await process.stderr.read() == b""


async def test_a_port_in_use_is_reported_without_a_traceback(start):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = await start("--port", str(taken.getsockname()[1]))
        async with asyncio.timeout(COMMAND_S):
            assert await process.wait() == 1
            text = (await process.stderr.read()).decode()
    assert text.startswith("apiserver: cannot serve on 127.0.0.1:")
    assert "Traceback" not in text


@pytest.mark.parametrize("port", ["70000", "http", "-1"])
async def test_an_invalid_port_is_reported(start, port):
    process = await start(f"--port={port}")
    async with asyncio.timeout(COMMAND_S):
        assert await process.wait() == 2
        assert (
            f"{port!r} is not a port; give a number from 0 to 65535" in (await process.stderr.read()).decode()
        )


async def test_it_creates_many_pods_sent_concurrently(api, make_pod):
    count = 300
    for first in range(0, count, 20):
        pods = [make_pod(f"p{number}") for number in range(first, first + 20)]
        await asyncio.gather(*(api("POST", PODS, pod, code=201) for pod in pods))
    assert len((await api("GET", PODS))["items"]) == count


async def test_it_lists_twenty_thousand_pods_in_one_answer(server, api, make_pod):
    pod = await api("POST", PODS, make_pod("first"), code=201)
    for number in range(20_000):
        copied = json.loads(json.dumps(pod))
        copied["metadata"] |= {"name": f"p{number}", "uid": str(number)}
        server.store.put("pods", "default", f"p{number}", copied)
    async with api.session.get(f"{api.base}{PODS}") as answer:
        body = await answer.read()
    assert body.count(b'"kind":"Pod"') == 20_001
