"""What a server takes from a peer, and for how long: on loopback, against those who send without end, or not at all."""

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
    """Answers with the length of the body; ``/held`` when the test releases it; POSTs to ``/quick`` past ASGI where that is known."""

    def __init__(self):
        self.held = asyncio.Event()
        self.holding = asyncio.Event()

    async def __call__(self, scope, receive, send):
        body = await read_body(receive, 1 << 20)
        if scope["path"] == "/held":
            self.holding.set()
            await self.held.wait()
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
    app.held.set()
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


async def ended(reader):
    """What comes until the server hangs up."""
    async with asyncio.timeout(30):
        with contextlib.suppress(ConnectionResetError):
            return await reader.read()
        return b""


async def asked(app, *, peer="127.0.0.1"):
    """The first line of the answer to a probe."""
    async with connected(app, peer=peer) as (reader, writer):
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return (await ended(reader)).partition(b"\r\n")[0]


@pytest.mark.parametrize(
    "begin",
    [
        b"GET / HTTP/1.1\r\n",
        b"POST /quick HTTP/1.1\r\nContent-Length: 4\r\n\r\nbodyGET / HTTP/1.1\r\n",
        # A trailer is a header that comes after the body.
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n",
    ],
    ids=["header", "header of the second request", "trailer"],
)
async def test_header_lines_without_end_are_read_to_a_bound(served, begin):
    line = b"x-header: " + b"a" * 1000 + b"\r\n"
    sent = 0
    async with connected(served) as (reader, writer):
        writer.write(begin)
        with contextlib.suppress(ConnectionError):
            while sent < 64 << 20 and not reader.at_eof():
                writer.write(line)
                sent += len(line)
                await writer.drain()
        await ended(reader)
    assert limits.MOST_HEADER_BYTES < sent < 16 << 20, "what the sockets take is on its way already"
    assert await asked(served) == OK


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
async def test_who_says_no_more_is_hung_up_on(served, monkeypatch, begin):
    monkeypatch.setattr(limits, "HEADER_S", 0.05)
    monkeypatch.setattr(limits, "BODY_S", 0.05)
    async with connected(served) as (reader, writer):
        writer.write(begin)
        assert OK not in await ended(reader)


async def test_a_request_that_takes_long_to_answer_is_waited_for(served, monkeypatch):
    # Enough for the server to read the request on a busy machine.
    monkeypatch.setattr(limits, "HEADER_S", 1.0)
    monkeypatch.setattr(limits, "BODY_S", 1.0)
    async with connected(served) as (reader, writer):
        writer.write(b"GET /held HTTP/1.1\r\nConnection: close\r\n\r\n")
        await served.holding.wait()
        async with connected(served) as (silent, _):
            await ended(silent)  # its time is over, and so would that of the other one be
        served.held.set()
        assert (await ended(reader)).startswith(OK)


async def test_who_takes_nothing_of_an_answer_is_hung_up_on(served, monkeypatch):
    monkeypatch.setattr(limits, "STUCK_S", 0.05)
    async with connected(served) as (reader, writer):
        writer.write(b"GET /large HTTP/1.1\r\nConnection: close\r\n\r\n")
        reader._transport.pause_reading()
        async with connected(served) as (other, asking):
            asking.write(b"GET /large HTTP/1.1\r\nConnection: close\r\n\r\n")
            assert (await ended(other)).startswith(OK)
        reader._transport.resume_reading()
        assert len(await ended(reader)) < 64 << 20


async def test_a_probe_is_answered_however_many_connections_are_held(served):
    async with contextlib.AsyncExitStack() as stack:
        held = [await stack.enter_async_context(connected(served, peer="127.0.0.2")) for _ in range(3 * MOST)]
        for _ in range(2 * MOST):
            assert await asked(served, peer="127.0.0.3") == OK
        # The oldest connection was closed first.
        assert await ended(held[0][0]) == b""


async def test_of_idle_connections_those_of_the_largest_crowd_go(served):
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
        held = []
        for _ in range(MOST):
            reader, writer = await stack.enter_async_context(connected(served))
            served.holding.clear()
            writer.write(b"GET /held HTTP/1.1\r\nConnection: close\r\n\r\n")
            await served.holding.wait()
            held.append(reader)
        assert await asked(served) == b""
        served.held.set()
        for reader in held:
            assert (await ended(reader)).startswith(OK)
        assert await asked(served) == OK


async def test_who_sends_thousands_of_requests_at_a_stroke_is_hung_up_on(served):
    async with connected(served) as (reader, writer):
        writer.write(b"GET /held HTTP/1.1\r\n\r\n" + b"GET / HTTP/1.1\r\n\r\n" * 10_000)
        await served.holding.wait()
        # The first is not answered yet. The kernel drops our 400, as unread data is left.
        assert OK not in await ended(reader)
    assert await asked(served) == OK


async def test_as_many_requests_at_a_stroke_as_may_wait_are_answered(served):
    async with connected(served) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\n\r\n" * limits.MOST_WAITING)
        writer.write(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
        assert (await ended(reader)).count(OK) == limits.MOST_WAITING + 1
