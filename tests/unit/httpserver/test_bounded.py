"""How much a server accepts from a peer, and for how long: on loopback, against peers that send endlessly or nothing."""

import asyncio
import contextlib

import pytest

from gpushare.httpserver import limits
from gpushare.httpserver.exchange import read_body, respond
from gpushare.httpserver.fast_path import QuickProtocol
from gpushare.httpserver.server import bind, server_of

OK = b"HTTP/1.1 200 OK"
MOST = 8


class App:
    """Responds with the length of the body; ``/held`` once the test releases it; POSTs to ``/quick`` bypass ASGI where supported."""

    def __init__(self):
        self.released = asyncio.Event()
        self.waiting = asyncio.Event()

    async def __call__(self, scope, receive, send):
        body = await read_body(receive, 1 << 20)
        if scope["path"] == "/held":
            self.waiting.set()
            await self.released.wait()
        if scope["path"] == "/large":
            await respond(send, 200, b"text/plain", b"x" * (64 << 20))
            return
        await respond(send, 200, b"text/plain", b"%d" % len(body))

    def quick(self, path):
        return (lambda body: b"%d" % len(body)) if path == b"/quick" else None


@pytest.fixture(params=[limits.BoundedProtocol, QuickProtocol], ids=["by ASGI", "quick"])
async def served(request, monkeypatch):
    monkeypatch.setattr("gpushare.httpserver.server._MOST_AT_ONCE", MOST)
    app, listening = App(), bind("127.0.0.1", 0)
    server = server_of(app, stop_s=1, protocol=request.param)
    running = asyncio.create_task(server.serve(sockets=[listening]))
    while not server.started:
        await asyncio.sleep(0)
    app.port = listening.getsockname()[1]
    yield app
    app.released.set()
    server.should_exit = True
    await running


@contextlib.asynccontextmanager
async def connected(app, *, peer="127.0.0.1"):
    reader, writer = await asyncio.open_connection("127.0.0.1", app.port, local_addr=(peer, 0))
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def read_to_end(reader):
    """What arrives until the server closes the connection."""
    async with asyncio.timeout(30):
        with contextlib.suppress(ConnectionResetError):
            return await reader.read()
        return b""


async def probe(app, *, peer="127.0.0.1"):
    """The first line of the response to a probe."""
    async with connected(app, peer=peer) as (reader, writer):
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return (await read_to_end(reader)).partition(b"\r\n")[0]


@pytest.mark.parametrize(
    "begin",
    [
        b"GET / HTTP/1.1\r\n",
        b"POST /quick HTTP/1.1\r\nContent-Length: 4\r\n\r\nbodyGET / HTTP/1.1\r\n",
        # A trailer is a header after the body.
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n",
    ],
    ids=["header", "header of the second request", "trailer"],
)
async def test_endless_header_lines_are_read_up_to_a_limit(served, begin):
    line = b"x-header: " + b"a" * 1000 + b"\r\n"
    sent = 0
    async with connected(served) as (reader, writer):
        writer.write(begin)
        with contextlib.suppress(ConnectionError):
            while sent < 64 << 20 and not reader.at_eof():
                writer.write(line)
                sent += len(line)
                await writer.drain()
        await read_to_end(reader)
    assert limits.MOST_HEADER_BYTES < sent < 16 << 20, "the socket buffers are already filled"
    assert await probe(served) == OK


@pytest.mark.parametrize(
    "begin",
    [
        b"",
        b"GET / HTTP/1.1\r\nx-hea",
        b"POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nbo",
        b"POST /quick HTTP/1.1\r\nContent-Length: 4\r\n\r\nbo",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n",
    ],
    ids=["nothing", "half a header", "half a body", "half a quick body", "a body without an end"],
)
async def test_a_peer_that_sends_no_more_is_disconnected(served, monkeypatch, begin):
    monkeypatch.setattr(limits, "HEADER_S", 0.05)
    monkeypatch.setattr(limits, "BODY_S", 0.05)
    async with connected(served) as (reader, writer):
        writer.write(begin)
        assert OK not in await read_to_end(reader)


async def test_a_request_that_takes_long_to_answer_is_not_cut_off(served, monkeypatch):
    # Enough for the server to read the request on a busy machine.
    monkeypatch.setattr(limits, "HEADER_S", 1.0)
    monkeypatch.setattr(limits, "BODY_S", 1.0)
    async with connected(served) as (reader, writer):
        writer.write(b"GET /held HTTP/1.1\r\nConnection: close\r\n\r\n")
        await served.waiting.wait()
        async with connected(served) as (silent, _):
            await read_to_end(silent)  # its timeout is over, and so would be that of the other one
        served.released.set()
        assert (await read_to_end(reader)).startswith(OK)


async def test_a_peer_that_reads_nothing_of_a_response_is_disconnected(served, monkeypatch):
    monkeypatch.setattr(limits, "STUCK_S", 0.05)
    async with connected(served) as (reader, writer):
        writer.write(b"GET /large HTTP/1.1\r\nConnection: close\r\n\r\n")
        reader._transport.pause_reading()
        async with connected(served) as (other, other_writer):
            other_writer.write(b"GET /large HTTP/1.1\r\nConnection: close\r\n\r\n")
            assert (await read_to_end(other)).startswith(OK)
        reader._transport.resume_reading()
        assert len(await read_to_end(reader)) < 64 << 20


async def test_a_peer_that_reads_slowly_gets_the_whole_response(served, monkeypatch):
    monkeypatch.setattr(limits, "STUCK_S", 1.0)
    checks = asyncio.Queue()
    check = limits.BoundedProtocol._check_reading
    monkeypatch.setattr(
        limits.BoundedProtocol,
        "_check_reading",
        lambda *arguments: checks.put_nowait(check(*arguments)),
    )
    async with connected(served) as (reader, writer):
        writer.write(b"GET /large HTTP/1.1\r\nConnection: close\r\n\r\n")
        received = 0
        for _ in range(2):
            received += len(await reader.readexactly(8 << 20))
            async with asyncio.timeout(10):
                await checks.get()
        received += len(await read_to_end(reader))
    assert received > 64 << 20


async def test_a_probe_is_answered_however_many_connections_are_open(served):
    async with contextlib.AsyncExitStack() as stack:
        connections = [
            await stack.enter_async_context(connected(served, peer="127.0.0.2")) for _ in range(3 * MOST)
        ]
        for _ in range(2 * MOST):
            assert await probe(served, peer="127.0.0.3") == OK
        # The oldest connection was closed first.
        assert await read_to_end(connections[0][0]) == b""


async def test_of_idle_connections_those_of_the_peer_with_the_most_are_closed(served):
    async with contextlib.AsyncExitStack() as stack:
        reader, writer = await stack.enter_async_context(connected(served, peer="127.0.0.3"))
        request = b"POST /quick HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody"
        writer.write(request)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(OK)
        await reader.readexactly(1)
        for _ in range(4 * MOST):
            await stack.enter_async_context(connected(served, peer="127.0.0.2"))
        # An idle connection that is older than all of them.
        writer.write(request)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(OK)


async def test_no_connection_is_closed_while_it_is_being_answered(served):
    async with contextlib.AsyncExitStack() as stack:
        readers = []
        for _ in range(MOST):
            reader, writer = await stack.enter_async_context(connected(served))
            served.waiting.clear()
            writer.write(b"GET /held HTTP/1.1\r\nConnection: close\r\n\r\n")
            await served.waiting.wait()
            readers.append(reader)
        assert await probe(served) == b""
        served.released.set()
        for reader in readers:
            assert (await read_to_end(reader)).startswith(OK)
        assert await probe(served) == OK


async def test_a_peer_that_sends_thousands_of_requests_at_once_is_disconnected(served):
    async with connected(served) as (reader, writer):
        writer.write(b"GET /held HTTP/1.1\r\n\r\n" + b"GET / HTTP/1.1\r\n\r\n" * 10_000)
        await served.waiting.wait()
        # The first is not answered yet. The kernel drops our 400, as unread data is left.
        assert OK not in await read_to_end(reader)
    assert await probe(served) == OK


async def test_pipelined_requests_up_to_the_limit_are_answered(served):
    async with connected(served) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\n\r\n" * limits.MOST_WAITING)
        writer.write(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
        assert (await read_to_end(reader)).count(OK) == limits.MOST_WAITING + 1
