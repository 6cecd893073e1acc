"""Bounds on what a peer may send, and on how long it may take."""

import asyncio
from enum import Enum, auto
from typing import Any, Final

from gpushare.httpserver.connections import Crowd
from gpushare.httpserver.lazy_uvicorn import STATUS_LINE, HttpToolsProtocol

#: Timeout for a request's header, in seconds, from the connection or its first byte.
HEADER_S: Final = 10.0
#: Timeout for its body after that, in seconds.
BODY_S: Final = 30.0
#: How long a peer may read nothing of a response, in seconds.
STUCK_S: Final = 30.0
#: Maximum bytes of a request without its body: header, trailer, chunk sizes. One read may exceed it.
MOST_HEADER_BYTES: Final = 64 * 1024
#: Maximum pipelined requests of a connection. Hardly any client pipelines; a malicious one could send tens of thousands
#: in one packet, each far more expensive here than there.
MOST_WAITING: Final = 16
_TOO_LARGE: Final = STATUS_LINE[431] + b"content-length: 0\r\nconnection: close\r\n\r\n"


class _Awaited(Enum):
    """What a peer has begun to send and must complete in time."""

    HEADER = auto()
    BODY = auto()


class _TooManyWait(Exception):
    """Ends the parsing; the connection is closed, as for invalid HTTP."""


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's connection, closed if the peer sends too much or too slowly, or does not read the response."""

    cycle: Any

    def __init__(self, *args: Any, crowd: Crowd, **options: Any) -> None:
        super().__init__(*args, **options)
        self._crowd = crowd
        self._peer = ""
        self._beside_body_bytes = 0
        self._awaited: _Awaited | None = _Awaited.HEADER
        #: What the timer runs for; a request that arrives in one read never starts it.
        self._timed: _Awaited | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._stuck: asyncio.TimerHandle | None = None

    @property
    def is_answered(self) -> bool:
        """Whether a complete request has arrived and its response is not sent yet, unless the peer does not read it."""
        at_work = self._awaited is None and self.cycle is not None and not self.cycle.response_complete
        return at_work and self._stuck is None

    def hang_up(self) -> None:
        """Close the connection immediately, whatever the peer has not read yet."""
        self.transport.abort()

    # --- of the connection ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection is open: expect a request."""
        super().connection_made(transport)
        self._entered()

    def _entered(self) -> None:
        peer = self.transport.get_extra_info("peername")
        self._peer = peer[0] if peer else ""
        self._wait()
        self._crowd.enter(self, self._peer)

    def connection_lost(self, exc: Exception | None) -> None:
        """The peer is gone: stop the timer."""
        self._wait_no_more()
        self._take_again()
        self._crowd.leave(self, self._peer)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse it, within the bounds."""
        self._beside_body_bytes += len(data)
        super().data_received(data)
        if self._beside_body_bytes > MOST_HEADER_BYTES and not self.transport.is_closing():
            if not self.is_answered:
                self.transport.write(_TOO_LARGE)
            self.transport.close()
        elif self._awaited is not self._timed:
            self._wait()

    def pause_writing(self) -> None:
        """The write buffer is full: the peer must read."""
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        """The peer has read."""
        self._take_again()
        super().resume_writing()

    # --- of a request -----------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A request has begun: expect the end of its header."""
        super().on_message_begin()
        self._beside_body_bytes = 0
        self._awaited = _Awaited.HEADER

    def on_headers_complete(self) -> None:
        """The header is complete: expect the end of the body."""
        if len(self.pipeline) >= MOST_WAITING:
            raise _TooManyWait
        self._awaited = _Awaited.BODY
        self._begin()

    def _begin(self) -> None:
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of the body, whose length the application bounds."""
        self._beside_body_bytes -= len(body)
        self._take(body)

    def _take(self, body: bytes) -> None:
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        self._awaited = None
        self._wait_no_more()
        self._answer()

    def _answer(self) -> None:
        super().on_message_complete()

    # --- timeouts ---------------------------------------------------------------------------------

    def _wait(self) -> None:
        self._wait_no_more()
        if self._awaited is not None:
            seconds = HEADER_S if self._awaited is _Awaited.HEADER else BODY_S
            self._patience = self.loop.call_later(seconds, self.hang_up)
            self._timed = self._awaited

    def _wait_no_more(self) -> None:
        self._timed = None
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _expect_reading(self) -> None:
        unread_bytes = self.transport.get_write_buffer_size()
        self._stuck = self.loop.call_later(STUCK_S, self._check_reading, unread_bytes)

    def _check_reading(self, unread_bytes: int) -> None:
        """Slow readers stay connected. A response is written only while the buffer is not full, so it does not grow meanwhile."""
        if self.transport.get_write_buffer_size() < unread_bytes:
            self._expect_reading()
        else:
            self.transport.abort()

    def _take_again(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None
