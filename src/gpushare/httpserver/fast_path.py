"""Answers small POSTs as soon as they are read, bypassing ASGI, which costs more than most responses.

Only what is plain goes this way: a POST of known and moderate length, on a connection with nothing else under way, to
a path that the application knows. All else is uvicorn's, and connections stay its own in every respect: how
they are counted, kept, timed and closed.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from gpushare.httpserver.exchange import JSON, TEXT, Refusal
from gpushare.httpserver.lazy_uvicorn import STATUS_LINE, FlowControl
from gpushare.httpserver.limits import BoundedProtocol

logger = logging.getLogger(__name__)

#: Answers a body with JSON, synchronously or not; raises ``Refusal`` for every status but 200.
VerbFn = Callable[[bytes], bytes | Coroutine[Any, Any, bytes]]

#: Larger bodies go through ASGI, which applies back-pressure.
_MOST_BYTES: Final = 4 * 1024 * 1024
_OK: Final = STATUS_LINE[200] + b"content-type: " + JSON + b"\r\ncontent-length: "


class QuickApp(Protocol):
    """An application some of whose paths bypass ASGI."""

    def quick(self, path: bytes) -> VerbFn | None:
        """The handler of a POST to ``path``; ``None`` leaves it to ASGI."""


class _Event:
    """Flow control that never waits: bodies are read whole here."""

    def set(self) -> None:
        """Nothing."""


class _UnderWay:
    """What uvicorn's protocol reads of the current request."""

    __slots__ = ("disconnected", "keep_alive", "response_complete")
    message_event: Final = _Event()

    def __init__(self) -> None:
        self.disconnected = False
        self.keep_alive = True
        self.response_complete = False


class QuickProtocol(BoundedProtocol):
    """A bounded connection, for an application that is a ``QuickApp`` too."""

    app: Any
    _verb: VerbFn | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """As uvicorn's, without our own address, which is not used."""
        self.connections.add(self)
        self.transport = transport
        self.flow = FlowControl(transport)
        self.scheme = "http"
        self._entered()

    def _begin(self) -> None:
        parser = self.parser
        if (
            parser.get_method() == b"POST"
            and (verb := self.app.quick(self.url)) is not None
            and (self.cycle is None or self.cycle.response_complete)
            and not self.flow.write_paused
            and not self.expect_100_continue
            and parser.get_http_version() == "1.1"
            and not parser.should_upgrade()
            and _is_small(self.headers)
        ):
            self._verb = verb
            self._parts: list[bytes] = []
            self.cycle = _UnderWay()
            self.cycle.keep_alive = parser.should_keep_alive()
        else:
            super()._begin()

    def _take(self, body: bytes) -> None:
        if self._verb is None:
            super()._take(body)
        else:
            self._parts.append(body)

    def _answer(self) -> None:
        verb, self._verb = self._verb, None
        if verb is None:
            super()._answer()
            return
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts = []
        cycle = self.cycle
        try:
            answer = verb(body)
        except Exception as error:
            self._failed(cycle, error)
            return
        if isinstance(answer, bytes):
            self._send(cycle, b"%s%d\r\n" % (_OK, len(answer)), answer)
            return
        task = self.loop.create_task(self._later(cycle, answer))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    async def _later(self, cycle: _UnderWay, coming: Coroutine[Any, Any, bytes]) -> None:
        try:
            answer = await coming
        except (Exception, asyncio.CancelledError) as error:
            # Cancelled only at the end of a shutdown's grace period; as in uvicorn, it still gets a response.
            self._failed(cycle, error)
        else:
            self._send(cycle, b"%s%d\r\n" % (_OK, len(answer)), answer)

    def _failed(self, cycle: _UnderWay, error: BaseException) -> None:
        if isinstance(error, Refusal):
            status, text = error.status, error.text.encode() + b"\n"
        else:
            logger.error("a request failed", exc_info=error)
            status, text = 500, b"Internal Server Error"
            cycle.keep_alive = False
        head = b"%scontent-type: %s\r\ncontent-length: %d\r\n" % (STATUS_LINE[status], TEXT, len(text))
        self._send(cycle, head, text)

    def _send(self, cycle: _UnderWay, head: bytes, body: bytes) -> None:
        if cycle.disconnected:
            return
        cycle.response_complete = True
        if cycle.keep_alive:
            self.transport.write(b"%s\r\n%s" % (head, body))
        else:
            self.transport.write(b"%sconnection: close\r\n\r\n%s" % (head, body))
            self.transport.close()
        self.on_response_complete()


def _is_small(headers: list[tuple[bytes, bytes]]) -> bool:
    for name, value in headers:
        if name == b"content-length":
            return len(value) < 10 and int(value) <= _MOST_BYTES
    return False
