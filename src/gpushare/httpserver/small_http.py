"""The smallest HTTP that probes, Prometheus and readers of a JSON page speak: GET and HEAD, one answer a connection.

A web framework costs more memory and time at the start than a page needs. Peers are bounded as everywhere: what they may
send, for how long, and how many connections there are at once.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from gpushare.api import names
from gpushare.httpserver.connections import Crowd

logger = logging.getLogger(__name__)

#: Timeout for a request to arrive, and for a peer that does not read the response, in seconds.
_READ_S: Final = 5.0
_STUCK_S: Final = 5.0
_MOST_HEADER_BYTES: Final = 16384
_END: Final = b"\r\n\r\n"
#: Bytes of a response handed to the kernel per write: a large one is in memory once, however many readers there are.
_CHUNK_BYTES: Final = 65536
_PHRASES: Final = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}
_TOKEN: Final = names.READER_HEADER.lower().encode()
TEXT: Final = "text/plain; charset=utf-8"


class Get(NamedTuple):
    """What is asked for. ``query``: what stands behind the question mark; ``takes_gzip``: whether the answer may be packed.

    ``token``: what ``names.READER_HEADER`` shows.
    """

    path: str
    query: str = ""
    takes_gzip: bool = False
    token: str = ""


class Answer(NamedTuple):
    """Status, type and body of an answer; ``encoding`` says how the body is packed."""

    status: int
    kind: str
    body: bytes
    encoding: str = ""


class _Visit:
    """One connection."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.is_answered = False
        self._writer = writer
        address = writer.get_extra_info("peername")
        self.peer: str = address[0] if address else ""

    def hang_up(self) -> None:
        """Close it immediately; a pending read ends."""
        self._writer.transport.abort()


class SmallServer:
    """Serves ``answer`` until closed, to at most ``most`` connections."""

    def __init__(self, answer: Callable[[Get], Awaitable[Answer]], most: int) -> None:
        self._answer = answer
        self._crowd = Crowd(most)

    async def start(self, host: str, port: int) -> asyncio.Server:
        """Listen; the caller closes the returned server. Raises ``OSError`` if the address is not available."""
        return await asyncio.start_server(self._serve, host, port, limit=_MOST_HEADER_BYTES)

    async def start_on(self, listening: socket.socket) -> asyncio.Server:
        """The same on a listening socket."""
        return await asyncio.start_server(self._serve, sock=listening, limit=_MOST_HEADER_BYTES)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visit = _Visit(writer)
        # Closing the connection drains the response: no write is left pending.
        writer.transport.set_write_buffer_limits(0)
        self._crowd.enter(visit, visit.peer)
        try:
            header = await read_header(reader)
            visit.is_answered = True
            head, body = await self._response(header)
            # From here on only the peer determines how long it takes: it may be closed for a new connection.
            visit.is_answered = False
            writer.write(head)
            for at in range(0, len(body), _CHUNK_BYTES):
                writer.write(memoryview(body)[at : at + _CHUNK_BYTES])
                async with asyncio.timeout(_STUCK_S):
                    await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            logger.debug("a connection was cut off: %r", error)
            writer.transport.abort()
        finally:
            self._crowd.leave(visit, visit.peer)
            writer.close()

    async def _response(self, header: bytes) -> tuple[bytes, bytes]:
        first, *fields = header.split(b"\r\n")
        words = first.decode("latin-1").split(" ")
        # A line feed in a path would inject a header into the relayed request.
        if len(words) != 3 or not (words[1].isascii() and words[1].isprintable()):
            return _head(Answer(400, TEXT, body := b"not HTTP\n")), body
        method, target, _ = words
        if method not in ("GET", "HEAD"):
            return _head(Answer(405, TEXT, body := b"GET only\n")), body
        path, _, query = target.partition("?")
        takes_gzip, token = False, ""
        for field in fields:
            name, _, value = field.partition(b":")
            if name.lower() == b"accept-encoding":
                takes_gzip = takes_gzip or b"gzip" in value.lower()
            elif name.lower() == _TOKEN:
                token = value.strip().decode("latin-1")
        answer = await self._answer(Get(path, query, takes_gzip, token))
        return _head(answer), b"" if method == "HEAD" else answer.body


async def read_header(reader: asyncio.StreamReader) -> bytes:
    """A request's header; raises ``TimeoutError`` if it does not arrive in time.

    A process that was starved of CPU finds the timeout expired and the request there: such a request is accepted.
    """
    try:
        async with asyncio.timeout(_READ_S):
            return await reader.readuntil(_END)
    except TimeoutError:
        async with asyncio.timeout(0):
            return await reader.readuntil(_END)


def _head(answer: Answer) -> bytes:
    lines = [
        f"HTTP/1.1 {answer.status} {_PHRASES.get(answer.status, 'Other')}",
        f"Content-Type: {answer.kind}",
        f"Content-Length: {len(answer.body)}",
        *([f"Content-Encoding: {answer.encoding}"] if answer.encoding else []),
        "Connection: close",
        "",
        "",
    ]
    return "\r\n".join(lines).encode()
