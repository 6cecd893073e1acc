"""Probes are answered whoever holds connections: an unanswered one fails the kubelet's liveness probe and restarts the agent."""

import asyncio
import contextlib
import socket

import pytest

from gpushare.httpserver.authorization import Readers
from gpushare.httpserver.listeners import PROBES, REST, doors
from gpushare.kube.auth.token_reviews import AccessReviews
from gpushare.nodeagent.observability.probes import Probes

TENANT, KUBELET = "127.0.0.2", "127.0.0.3"


@contextlib.asynccontextmanager
async def listening():
    probes = Probes(list, {}, {}, Readers(AccessReviews(None)))
    async with await probes.start("127.0.0.1", 0) as listener:
        yield listener.sockets[0].getsockname()


async def probed(address, path="/healthz"):
    reader, writer = await asyncio.open_connection(*address, local_addr=(KUBELET, 0))
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        async with asyncio.timeout(5):
            return (await reader.read()).partition(b"\r\n")[0]
    finally:
        writer.close()


async def test_idle_connections_of_others_block_no_probe():
    async with listening() as address, contextlib.AsyncExitStack() as stack:
        for number in range(100):
            _, writer = await asyncio.open_connection(*address, local_addr=(TENANT, 0))
            stack.callback(writer.close)
            if number % 10 == 0:
                writer.write(b"GET /half")
                assert await probed(address) == b"HTTP/1.1 200 OK"


async def test_every_address_answers_its_own_pages_and_has_connections_of_its_own():
    figures = {"/metrics": lambda: b"x 1\n"}
    probes = Probes(list, figures, {"/usage": lambda query: b"{}"}, Readers(AccessReviews(None)))
    anywhere = ("127.0.0.1", 0)
    opened = await probes.open(doors(anywhere, {PROBES: anywhere, REST: anywhere}))
    paths = {"/metrics": b"200 OK", "/healthz": b"200 OK", "/usage": b"401 Unauthorized"}
    async with contextlib.AsyncExitStack() as stack:
        at = {path: one.sockets[0].getsockname() for path, one in zip(paths, opened, strict=True)}
        for path, one in at.items():
            stack.callback(opened[list(at).index(path)].close)
            for requested, status in paths.items():
                expected = status if requested == path else b"404 Not Found"
                assert await probed(one, requested) == b"HTTP/1.1 " + expected
        # As many connections from one address as there are places, and more: a probe whose request is coming keeps its own.
        reader, writer = await asyncio.open_connection(*at["/healthz"], local_addr=(TENANT, 0))
        stack.callback(writer.close)
        writer.write(b"GET /healthz HTTP/1.1\r\n")
        for path in ("/metrics", "/usage"):
            for _ in range(40):
                _, taken = await asyncio.open_connection(*at[path], local_addr=(TENANT, 0))
                stack.callback(taken.close)
        writer.write(b"\r\n")
        async with asyncio.timeout(5):
            assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"


async def test_if_one_address_is_unavailable_none_is_left_open():
    probes = Probes(list, {}, {}, Readers(AccessReviews(None)))
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as free:
        there = free.getsockname()
        free.close()
        with pytest.raises(OSError, match="address already in use"):
            await probes.open(doors(there, {PROBES: taken.getsockname()}))
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*there)


async def test_the_client_with_the_most_connections_loses_the_oldest():
    async with listening() as address, contextlib.AsyncExitStack() as stack:
        readers = []
        for _ in range(17):
            reader, writer = await asyncio.open_connection(*address, local_addr=(TENANT, 0))
            stack.callback(writer.close)
            readers.append(reader)
        async with asyncio.timeout(5):
            assert await readers[0].read() == b""
        assert not readers[1].at_eof()
