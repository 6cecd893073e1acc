"""Whatever a peer sends to one of our servers, its connection ends, and the next one is answered."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.httpserver.exchange import Receive, Refusal, Scope, Send, read_body, respond
from gpushare.httpserver.fast_path import QuickProtocol
from gpushare.httpserver.limits import BoundedProtocol
from gpushare.httpserver.server import Server, bind, server_of
from gpushare.httpserver.small_http import TEXT, Answer, Get, SmallServer
from tests.randomized import SOAK, rounds

PROBE: Final = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
#: Processor seconds for what one peer sends, checked in soak runs.
_MOST_S: Final = 1.0
_DEADLINE_S: Final = 60.0

pieces = st.one_of(
    st.binary(max_size=30),
    st.sampled_from(
        [
            b"GET ", b"POST ", b"HEAD ", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"/healthz", b"/quick", b"/", b" HTTP/1.1\r\n", b" HTTP/9.9\r\n",
            b" HTTP/1.0\r\n", b"\r\n", b"\n", b"\r", b"\r\n\r\n", b"Host: x\r\n", b"Host: x\r\nHost: y\r\n", b"Content-Length: 5\r\n",
            b"Content-Length: -1\r\n", b"Content-Length: 99999999999999999999\r\n", b"Content-Length: 5\r\nContent-Length: 6\r\n",
            b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: chunked, identity\r\n", b"5\r\nhello\r\n", b"0\r\n\r\n", b"fffffffffffffffff\r\n",
            b"5;ext=" + b"a" * 3000 + b"\r\n", b"Expect: 100-continue\r\n", b"Upgrade: websocket\r\nConnection: Upgrade\r\n", b"Connection: close\r\n",
            b"Accept-Encoding: gzip\r\n", b" folded\r\n", b"X: " + b"y" * 20000 + b"\r\n", b"Y:" * 9000, b"\0" * 100, b"\x16\x03\x01\x02\x00\x01",
        ]
    ),
)  # fmt: skip
#: Chunks, each sent with one write.
sent = st.lists(st.lists(pieces, max_size=8).map(b"".join), min_size=1, max_size=4)
repeated = settings(max_examples=rounds(40, soak=2_000), deadline=None)


class App:
    """Answers with the body's length, by ASGI and by the quick path."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await respond(send, 200, b"text/plain", b"%d" % len(await read_body(receive, 1 << 16)))
        except Refusal as refusal:
            await respond(send, refusal.status, b"text/plain", b"")

    def quick(self, path: bytes) -> object:
        return (lambda body: b"%d" % len(body)) if path == b"/quick" else None


async def answer(get: Get) -> Answer:
    """The answer of the smallest server."""
    return Answer(200, TEXT, b"ok\n")


async def converse(port: int, chunks: list[bytes]) -> bytes:
    """The server's output until either side closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(ConnectionError):
        for one in chunks:
            writer.write(one)
            await writer.drain()
        writer.write_eof()
    output = b""
    with contextlib.suppress(ConnectionError):
        output = await reader.read()
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    return output


async def survive(port: int, chunks: list[bytes]) -> None:
    """The peer's connection ends, and a probe is answered."""
    began_s = time.process_time()
    async with asyncio.timeout(_DEADLINE_S):
        await converse(port, chunks)
        assert (await converse(port, [PROBE])).startswith(b"HTTP/1.1 200 OK")
    if SOAK:
        assert time.process_time() - began_s < _MOST_S


@contextlib.contextmanager
def serving(protocol: type[BoundedProtocol] | None) -> Iterator[Callable[[list[bytes]], None]]:
    """Runs a server, the smallest without a ``protocol``; gives a function that lets a peer send to it."""
    with asyncio.Runner() as runner, closing(bind("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        async def start() -> Callable[[], Awaitable[object]]:
            if protocol is None:
                small = await SmallServer(answer, 16).start_on(listening)
                return lambda: _closed(small)
            server = server_of(App(), stop_s=1, protocol=protocol)
            running = asyncio.create_task(server.serve(sockets=[listening]))
            while not server.started:
                await asyncio.sleep(0)
            return lambda: _stopped(server, running)

        end = runner.run(start())
        yield lambda chunks: runner.run(survive(port, chunks))
        runner.run(end())


async def _closed(small: asyncio.Server) -> None:
    small.close()
    await small.wait_closed()


async def _stopped(server: Server, running: asyncio.Task[None]) -> None:
    server.should_exit = True
    await running


@pytest.mark.randomized
@pytest.mark.parametrize(
    "protocol", [BoundedProtocol, QuickProtocol, None], ids=["by ASGI", "quick", "smallest"]
)
def test_a_server_survives_whatever_a_peer_sends(protocol: type[BoundedProtocol] | None) -> None:
    with serving(protocol) as peer_sends:

        @repeated
        @given(sent)
        def each(chunks: list[bytes]) -> None:
            peer_sends(chunks)

        each()
