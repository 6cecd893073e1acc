"""Peers of a TLS server that send no TLS, never finish the handshake, or send their request with its last message."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpushare.admission.certs.certificates import make_generation
from gpushare.httpserver import tls_handshakes
from gpushare.httpserver.exchange import TEXT, Receive, Scope, Send, read_body, respond
from gpushare.httpserver.server import bind, server_of

MOST = 8
REQUEST = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    await respond(send, 200, TEXT, f"{scope['scheme']} {len(await read_body(receive, 1024))}".encode())


class Served:
    """The port, and a context that trusts the server there."""

    def __init__(self, port: int, trusting: ssl.SSLContext) -> None:
        self.port = port
        self.trusting = trusting
        self._writers: list[asyncio.StreamWriter] = []

    async def probe(self) -> str:
        """The body of a response over TLS."""
        async with asyncio.timeout(30):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", self.port, ssl=self.trusting, server_hostname="localhost"
            )
            writer.write(REQUEST)
            response = await reader.read()
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        return response.rpartition(b"\r\n")[2].decode()

    async def connected(self, first: bytes = b"") -> asyncio.StreamReader:
        """A peer that sends ``first`` and nothing else."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._writers.append(writer)
        writer.write(first)
        return reader

    async def close(self) -> None:
        """Close those connections."""
        for one in self._writers:
            one.close()
            with contextlib.suppress(OSError):
                await one.wait_closed()


@pytest.fixture
async def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    monkeypatch.setattr("gpushare.httpserver.server._MOST_AT_ONCE", MOST)
    made = make_generation(["localhost"], datetime.now(UTC), timedelta(days=1))
    (tmp_path / "both.pem").write_bytes(made.certificate_pem + made.key_pem)
    tls, trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.load_cert_chain(tmp_path / "both.pem")
    trusting.load_verify_locations(cadata=made.ca_pem.decode())
    listening = bind("127.0.0.1", 0)
    server = server_of(app, stop_s=1, tls=tls)
    running = asyncio.create_task(server.serve(sockets=[listening]))
    while not server.started:
        await asyncio.sleep(0)
    serving = Served(listening.getsockname()[1], trusting)
    yield serving
    await serving.close()
    server.should_exit = True
    await running


async def read_to_end(reader: asyncio.StreamReader) -> bytes:
    """What arrives until the server closes the connection."""
    async with asyncio.timeout(30):
        with contextlib.suppress(ConnectionResetError):
            return await reader.read()
        return b""


async def test_requests_over_tls_are_answered_as_https(served: Served) -> None:
    assert await served.probe() == "https 0"
    assert await asyncio.gather(*(served.probe() for _ in range(MOST // 2))) == ["https 0"] * (MOST // 2)


@pytest.mark.parametrize(
    "first", [REQUEST, b"\x16\x03\x01" + b"\xff" * 600, b"\0" * 5], ids=["HTTP", "noise", "zeros"]
)
async def test_a_peer_that_sends_no_tls_is_disconnected(served: Served, first: bytes) -> None:
    assert b"HTTP/1.1" not in await read_to_end(await served.connected(first))
    assert await served.probe() == "https 0"


@pytest.mark.parametrize("first", [b"", b"\x16\x03\x01\x02\x00"], ids=["silent", "half a message"])
async def test_a_handshake_that_does_not_end_is_aborted(
    served: Served, first: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_handshakes, "HANDSHAKE_S", 0.05)
    assert await read_to_end(await served.connected(first)) == b""


async def test_many_unfinished_handshakes_do_not_block_clients(served: Served) -> None:
    waiting = [await served.connected(b"\x16") for _ in range(3 * MOST)]
    assert await served.probe() == "https 0"
    # The oldest were closed.
    assert await read_to_end(waiting[0]) == b""


async def test_data_sent_with_the_last_handshake_message_is_read(served: Served) -> None:
    # By hand: the client's last message of the handshake and its request in one piece.
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = served.trusting.wrap_bio(incoming, outgoing, server_hostname="localhost")
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    async with asyncio.timeout(30):
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                writer.write(outgoing.read())
                incoming.write(await reader.read(65536))
        client.write(REQUEST)
        writer.write(outgoing.read())
        response = b""
        while not response.endswith(b"https 0"):
            incoming.write(await reader.read(65536))
            with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
                while piece := client.read():
                    response += piece
        writer.close()
        await writer.wait_closed()
