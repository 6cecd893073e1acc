"""``/healthz``, ``/readyz`` and pages of figures, over the smallest HTTP that probes and Prometheus speak.

A web framework would cost more memory than the rest of this program's state; three GETs do not need one.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from gpushare.serving.crowd import Crowd

logger = logging.getLogger(__name__)

_READ_S: Final = 5.0
_MOST_HEADER_BYTES: Final = 16384
_MOST_AT_ONCE: Final = 16
_PHRASES: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}
_TEXT: Final = "text/plain; charset=utf-8"
_JSON: Final = "application/json"
_EXPOSITION: Final = "text/plain; version=0.0.4; charset=utf-8"


class _Visit:
    """One connection."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.is_answered = False
        self._writer = writer
        address = writer.get_extra_info("peername")
        self.peer: str = address[0] if address else ""

    def hang_up(self) -> None:
        """Close it at once: whoever reads from it finds its end."""
        self._writer.transport.abort()


class Probes:
    """Serves until closed. ``missing`` says what is not ready yet, a text each; ``figures`` are pages for Prometheus by their path.

    ``pages`` are others by their path, in JSON; they are handed what stands behind the question mark, and raise ``ValueError`` where
    that says nothing to them.
    """

    def __init__(
        self,
        missing: Callable[[], list[str]],
        figures: Mapping[str, Callable[[], bytes]],
        pages: Mapping[str, Callable[[str], bytes]] | None = None,
    ) -> None:
        self._missing = missing
        self._figures = figures
        self._pages = pages or {}
        self._crowd = Crowd(_MOST_AT_ONCE)

    async def start(self, host: str, port: int) -> asyncio.Server:
        """Listen; the caller closes what it gets. Raises ``OSError`` when the address cannot be had."""
        return await asyncio.start_server(self._serve, host, port, limit=_MOST_HEADER_BYTES)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visit = _Visit(writer)
        self._crowd.enter(visit, visit.peer)
        try:
            async with asyncio.timeout(_READ_S):
                header = await reader.readuntil(b"\r\n\r\n")
                visit.is_answered = True
                writer.write(self._answer(header))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            logger.debug("a probe was cut off: %r", error)
        finally:
            self._crowd.leave(visit, visit.peer)
            writer.close()

    def _answer(self, header: bytes) -> bytes:
        words = header.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3:
            return _response(400, _TEXT, b"not HTTP\n")
        method, target, _ = words
        if method not in ("GET", "HEAD"):
            return _response(405, _TEXT, b"GET only\n")
        path, _, query = target.partition("?")
        status, kind, body = self._page(path, query)
        return _response(status, kind, body, head=method == "HEAD")

    def _page(self, path: str, query: str) -> tuple[int, str, bytes]:
        if path == "/healthz":
            return 200, _TEXT, b"ok\n"
        if path == "/readyz":
            missing = self._missing()
            return (
                (503, _TEXT, "".join(f"{one}\n" for one in missing).encode())
                if missing
                else (200, _TEXT, b"ok\n")
            )
        if path in self._figures:
            return 200, _EXPOSITION, self._figures[path]()
        if path in self._pages:
            try:
                return 200, _JSON, self._pages[path](query)
            except ValueError as error:
                return 400, _TEXT, f"{error}\n".encode()
        there = ", ".join(("/healthz", "/readyz", *self._figures, *self._pages))
        return 404, _TEXT, f"there are {there}\n".encode()


def _response(status: int, kind: str, body: bytes, *, head: bool = False) -> bytes:
    lines = (
        f"HTTP/1.1 {status} {_PHRASES[status]}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        "Connection: close",
        "",
        "",
    )
    return "\r\n".join(lines).encode() + (b"" if head else body)
