"""A relay process before a server in this process: killed, flooded, and read from slowly."""

import asyncio
import errno
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from benchmarks.processes import rss_mb
from gpushare.httpserver.exchange import TEXT, Receive, Scope, Send, respond
from gpushare.httpserver.listeners import ALL, METRICS, PROBES, REST, Door
from gpushare.httpserver.relay_launcher import behind_relay, relay
from gpushare.httpserver.server import open_doors, server_of

# The relay runs 10 nicer than others: next to three busy processes on two processors it takes half a
# minute for the longest test.
DEADLINE_S = 240.0
LARGE = b"x" * (8 << 20)


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Its own process ID, a large page, or the token that came with the request."""
    shown = dict(scope["headers"]).get(b"x-gpushare-token", b"none")
    pages = {"/large": LARGE, "/token": shown}
    await respond(send, 200, TEXT, pages.get(scope["path"], str(os.getpid()).encode()))


@asynccontextmanager
async def relayed() -> AsyncIterator[int]:
    """The port at which a relay answers for ``app``."""
    async with relayed_at(ALL) as (port,):
        yield port


@asynccontextmanager
async def relayed_at(*pages: frozenset[str]) -> AsyncIterator[list[int]]:
    """The ports at which a relay answers for ``app``, one for each of ``pages``."""
    with ExitStack() as opened, closing(behind_relay()) as behind:
        doors = open_doors([Door(("127.0.0.1", 0), one) for one in pages], opened)
        server = server_of(app, stop_s=1)
        serving = asyncio.create_task(server.serve(sockets=[behind]))
        relaying = asyncio.create_task(relay(doors, behind))
        try:
            async with asyncio.timeout(DEADLINE_S):
                yield [one.getsockname()[1] for one in doors]
        finally:
            relaying.cancel()
            await asyncio.wait([relaying])
            server.should_exit = True
            await serving


def child() -> int:
    """The process ID of this process's relay."""
    listed = (int(one.name) for one in Path("/proc").iterdir() if one.name.isdecimal())
    return next(pid for pid in listed if _is_relay(pid))


def _is_relay(pid: int) -> bool:
    try:
        command_line = Path(f"/proc/{pid}/cmdline").read_bytes()
        parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
    except OSError:
        return False
    return b"gpushare.httpserver.relay" in command_line and int(parent) == os.getpid()


async def read(port: int, path: str = "/", **headers: str) -> str:
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.get(f"http://127.0.0.1:{port}{path}") as answer,
    ):
        return await answer.text()


async def until(met: Callable[[], Awaitable[bool]]) -> None:
    while not await met():
        await asyncio.sleep(0)


async def test_it_answers_for_the_process_behind_it_and_again_after_it_was_killed() -> None:
    async with relayed() as port:
        assert await read(port) == str(os.getpid())
        assert await read(port, "/large") == LARGE.decode()
        killed = child()
        os.kill(killed, signal.SIGKILL)

        async def again() -> bool:
            try:
                return await read(port) == str(os.getpid()) and child() != killed
            except (aiohttp.ClientError, StopIteration):
                return False

        await until(again)


async def test_a_relay_that_cannot_start_is_retried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start, refused = asyncio.create_subprocess_exec, iter((True, True, False))

    async def short_of_memory(*arguments: Any, **options: Any) -> asyncio.subprocess.Process:
        if next(refused):
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return await start(*arguments, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", short_of_memory)
    async with relayed() as port:
        assert await read(port) == str(os.getpid())
    assert caplog.text.count("cannot start the process that answers probes and metrics") == 2


async def test_connections_that_read_nothing_neither_fill_memory_nor_block_others() -> None:
    async with relayed() as port:
        await read(port, "/large")
        pid, taken = child(), []
        before_mb = rss_mb(pid)
        try:
            for _ in range(600):
                one = socket.create_connection(("127.0.0.1", port))
                one.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
                taken.append(one)
                if len(taken) % 50 == 0:
                    assert await read(port) == str(os.getpid())
            # Each alone would be 8 MB.
            assert rss_mb(pid) < before_mb + 100
            assert await read(port) == str(os.getpid())
        finally:
            for one in taken:
                one.close()


async def test_the_relayed_process_sees_each_callers_identity_and_no_caller_gets_anothers_answer() -> None:
    async with relayed() as port:
        for token in ("one", "two"):
            assert await read(port, "/token", **{"X-Gpushare-Token": token}) == token
        assert await read(port, "/token") == "none"


async def status(port: int, path: str) -> int:
    async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}{path}") as answer:
        return answer.status


async def test_each_port_serves_only_its_own_pages() -> None:
    paths = {METRICS: "/metrics", PROBES: "/healthz", REST: "/gpushare/decisions"}
    async with relayed_at(*(frozenset({kind}) for kind in paths)) as ports:
        statuses = {
            (kind, path): await status(port, path)
            for kind, port in zip(paths, ports, strict=True)
            for path in paths.values()
        }
        assert statuses == {(kind, path): 200 if path == paths[kind] else 404 for kind, path in statuses}


async def test_exhausting_one_ports_connections_leaves_the_other_ports_free() -> None:
    """All from one address, whose oldest connection would be closed for a probe at the same port."""
    async with (
        relayed_at(frozenset({METRICS, REST}), frozenset({PROBES})) as (flooded, probed),
        aiohttp.ClientSession() as http,
    ):
        # A probe whose header has arrived in part: at the flooded port it would be among the oldest,
        # which are closed first.
        reader, writer = await asyncio.open_connection("127.0.0.1", probed)
        writer.write(b"GET /healthz HTTP/1.1\r\n")
        taken = [socket.create_connection(("127.0.0.1", flooded)) for _ in range(600)]
        try:
            async with http.get(f"http://127.0.0.1:{probed}/healthz") as answer:
                assert answer.status == 200
            writer.write(b"Host: x\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        finally:
            writer.close()
            for one in taken:
                one.close()
