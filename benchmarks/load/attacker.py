"""An attacker: opens connections from its own addresses, as fast as it can, and closes all of them at the end.

Usage: ``python -m benchmarks.load.attacker``. Each line of JSON that it reads is an ``Attack``, answered with a line of
counts of its actions. It has low priority, so that only the attack itself slows the attacked process.
"""

import asyncio
import logging
import os
import random
import socket
import ssl
import struct
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, cast

import msgspec
import uvloop

from benchmarks.load.openings import PLAIN, TLS

#: A placeholder in requests for an invalid token, a new one each time.
MADE_UP: Final = "MADE-UP-TOKEN"
LOOPBACK: Final = "127.0.0.1"
_LESS_URGENT: Final = 19
_PART: Final = b"x" * 65536
_LINES: Final = b"".join(b"x%03d: %s\r\n" % (number, b"a" * 1000) for number in range(64))
_SMALLEST: Final = b"GET / HTTP/1.1\r\n\r\n" * 12_000
#: Seconds for which an unused connection stays open.
_LINGER_S: Final = 0.3
_REFUSED_S: Final = 0.02


class Attack(msgspec.Struct, frozen=True):
    """``kind``: a method of ``_Attacking``; ``requests``: complete requests, used in turn by ``hammer`` and ``slow``."""

    kind: str
    port: int
    seconds: float
    connections: int
    sources: list[str]
    tls: bool = False
    requests: list[str] = msgspec.field(default_factory=list)


class _Stream:
    """One connection of an attacker; it reads only on request; the kernel buffers little."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def ended(self) -> None:
        while await self.reader.read(65536):
            pass

    async def answer(self) -> tuple[int, bool]:
        """The status of one response, which is read completely, and whether the connection stays open."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").lower().strip().split("\r\n")
        fields = dict(line.split(": ", 1) for line in lines if ": " in line)
        await self.reader.readexactly(int(fields.get("content-length", "0")))
        return int(first.split()[1]), fields.get("connection") != "close"


class _Attacking:
    def __init__(self, attack: Attack) -> None:
        self._attack = attack
        self.done: Counter[str] = Counter()
        self._trust = ssl.create_default_context()
        self._trust.check_hostname, self._trust.verify_mode = False, ssl.CERT_NONE

    async def run(self) -> None:
        """Attacks for the given time; afterwards all connections are closed."""
        kind: Callable[[int], Awaitable[None]] = getattr(self, self._attack.kind)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._attack.seconds), asyncio.TaskGroup() as visitors:
                for number in range(self._attack.connections):
                    visitors.create_task(self._again(kind, number))

    async def _again(self, kind: Callable[[int], Awaitable[None]], number: int) -> None:
        while True:
            try:
                await kind(number)
            # RuntimeError: uvloop's error of a connection that was reset meanwhile.
            except (OSError, EOFError, ValueError, RuntimeError, asyncio.LimitOverrunError) as error:
                self.done[type(error).__name__] += 1
                await asyncio.sleep(_REFUSED_S)

    async def _socket(self, number: int) -> socket.socket:
        one = socket.socket()
        try:
            one.setblocking(False)
            # Reset at the end, so that neither side keeps state of it.
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.bind((self._attack.sources[number % len(self._attack.sources)], 0))
            await asyncio.get_running_loop().sock_connect(one, (LOOPBACK, self._attack.port))
        except BaseException:
            one.close()
            raise
        self.done["opened"] += 1
        return one

    async def _stream(self, number: int) -> _Stream:
        one = await self._socket(number)
        secured = {"ssl": self._trust, "server_hostname": ""} if self._attack.tls else {}
        try:
            return _Stream(*await asyncio.open_connection(sock=one, **secured))
        except BaseException:
            one.close()
            raise

    def _request(self, number: int) -> bytes:
        request = self._attack.requests[number % len(self._attack.requests)]
        # Each made-up token is new.
        return request.replace(MADE_UP, f"made-up-{os.getpid()}-{number}-{time.monotonic_ns()}").encode(
            "latin-1"
        )

    # --- kinds ----------------------------------------------------------------------------------

    async def idle(self, number: int) -> None:
        """Silent connections, TLS or not."""
        with await self._socket(number) as one:
            await asyncio.get_running_loop().sock_recv(one, 1)

    async def slow(self, number: int) -> None:
        """A byte per second of a header or of a body; or a response that is never read."""
        stream = await self._stream(number)
        try:
            match number % 3:
                case 0:
                    await stream.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ")
                case 1:
                    head, _, _ = self._request(number // 3).partition(b"\r\n")
                    path = head.split()[1]
                    await stream.send(
                        b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 4000\r\n\r\n{"
                        % path
                    )
                case _:
                    cast("asyncio.Transport", stream.writer.transport).pause_reading()
                    # Several at once, for servers with persistent connections.
                    await stream.send(self._request(number // 3) * 4)
            while not stream.writer.is_closing() and not stream.reader.at_eof():
                await asyncio.sleep(1.0)
                if number % 3 < 2:
                    await stream.send(b"x")
        finally:
            stream.writer.transport.abort()

    async def huge(self, number: int) -> None:
        """Endless headers and bodies, as fast as they are accepted."""
        stream = await self._stream(number)
        post = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        begun, more = (
            (b"GET /healthz HTTP/1.1\r\nHost: x\r\n", _LINES),
            (post + b"Content-Length: 1073741824\r\n\r\n", _PART),
            (post + b"Transfer-Encoding: chunked\r\n\r\n", b"%x\r\n%s\r\n" % (len(_PART), _PART)),
        )[number % 3]
        try:
            await stream.send(begun)
            while not stream.reader.at_eof():
                await stream.send(more)
                self.done["KiB"] += len(more) >> 10
                await asyncio.sleep(0)
        finally:
            stream.writer.transport.abort()

    async def pipelined(self, number: int) -> None:
        """Thousands of the smallest requests at once, without reading the responses."""
        stream = await self._stream(number)
        try:
            cast("asyncio.Transport", stream.writer.transport).pause_reading()
            while not stream.reader.at_eof():
                await stream.send(_SMALLEST)
                await asyncio.sleep(_LINGER_S)
        finally:
            stream.writer.transport.abort()

    async def malformed(self, number: int) -> None:
        """Neither TLS nor HTTP, truncated requests, and disconnects in between."""
        loop = asyncio.get_running_loop()
        with await self._socket(number) as one:
            data = random.choice(TLS if self._attack.tls else PLAIN)
            await loop.sock_sendall(one, data or random.randbytes(random.randint(1, 4096)))
            if random.random() < 0.5:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(_LINGER_S):
                    while await loop.sock_recv(one, 65536):
                        self.done["answered"] += 1

    async def hammer(self, number: int) -> None:
        """One request after the other, each response read completely."""
        stream = await self._stream(number)
        try:
            goes_on = True
            while goes_on:
                number += 1
                await stream.send(self._request(number))
                status, goes_on = await stream.answer()
                self.done[str(status)] += 1
        finally:
            stream.writer.transport.abort()


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    # Thousands of connections break here: the loop's messages about them are useless.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    loop.set_exception_handler(lambda *_: None)
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        attacking = _Attacking(msgspec.json.decode(line, type=Attack))
        await attacking.run()
        print(msgspec.json.encode(attacking.done).decode(), flush=True)


if __name__ == "__main__":
    os.nice(_LESS_URGENT)
    uvloop.run(_serve())
