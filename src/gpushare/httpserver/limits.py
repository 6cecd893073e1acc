"""Bounds on what a peer may send us, and keep us waiting for."""

import asyncio
from enum import Enum, auto
from typing import Any, Final

from gpushare.httpserver.connections import Crowd
from gpushare.httpserver.lazy_uvicorn import STATUS_LINE, HttpToolsProtocol

#: Longest time for a request's header to arrive, in seconds, from the connection or its first byte.
HEADER_S: Final = 10.0
#: Longest time for its body after that.
BODY_S: Final = 30.0
#: How long a peer may take nothing of an answer.
STUCK_S: Final = 30.0
#: Most that is read of a request beside its body: header, trailer, sizes of chunks. What comes at one stroke is looked at whole.
MOST_HEADER_BYTES: Final = 64 * 1024
#: Requests that may wait on a connection for the answers to those before them. Hardly any client sends the next one before; a
#: peer could send tens of thousands at a stroke, each of which costs far more here than there.
MOST_WAITING: Final = 16
_TOO_LARGE: Final = STATUS_LINE[431] + b"content-length: 0\r\nconnection: close\r\n\r\n"


class _Awaited(Enum):
    """What a peer has begun to send, and should end."""

    HEADER = auto()
    BODY = auto()


class _TooManyWait(Exception):
    """Ends the reading of what came; the connection is closed, as after what is not HTTP."""


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's connection, which hangs up on who sends too much, or too slowly, or takes no answer."""

    cycle: Any

    def __init__(self, *args: Any, crowd: Crowd, **options: Any) -> None:
        super().__init__(*args, **options)
        self._crowd = crowd
        self._peer = ""
        self._beside_body_bytes = 0
        self._awaited: _Awaited | None = _Awaited.HEADER
        #: What the timer runs for: of a request that comes at one stroke, for nothing.
        self._timed: _Awaited | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._stuck: asyncio.TimerHandle | None = None

    @property
    def is_answered(self) -> bool:
        """Whether a whole request has come, and its answer is not sent yet; not where the peer keeps that waiting."""
        at_work = self._awaited is None and self.cycle is not None and not self.cycle.response_complete
        return at_work and self._stuck is None

    def hang_up(self) -> None:
        """Close the connection at once, whatever the peer has not taken yet."""
        self.transport.abort()

    # --- of the connection ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection is there: a request should follow."""
        super().connection_made(transport)
        self._entered()

    def _entered(self) -> None:
        peer = self.transport.get_extra_info("peername")
        self._peer = peer[0] if peer else ""
        self._wait()
        self._crowd.enter(self, self._peer)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody is there to wait for."""
        self._wait_no_more()
        self._take_again()
        self._crowd.leave(self, self._peer)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read it, as long as it has an end."""
        self._beside_body_bytes += len(data)
        super().data_received(data)
        if self._beside_body_bytes > MOST_HEADER_BYTES and not self.transport.is_closing():
            if not self.is_answered:
                self.transport.write(_TOO_LARGE)
            self.transport.close()
        elif self._awaited is not self._timed:
            self._wait()

    def pause_writing(self) -> None:
        """The peer should take what is written."""
        super().pause_writing()
        self._stuck = self.loop.call_later(STUCK_S, self.transport.abort)

    def resume_writing(self) -> None:
        """It has."""
        self._take_again()
        super().resume_writing()

    # --- of a request -----------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A request has begun: its header should end."""
        super().on_message_begin()
        self._beside_body_bytes = 0
        self._awaited = _Awaited.HEADER

    def on_headers_complete(self) -> None:
        """The header is there: the body should end."""
        if len(self.pipeline) >= MOST_WAITING:
            raise _TooManyWait
        self._awaited = _Awaited.BODY
        self._begin()

    def _begin(self) -> None:
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of the body: how long that may be is the application's to say."""
        self._beside_body_bytes -= len(body)
        self._take(body)

    def _take(self, body: bytes) -> None:
        super().on_body(body)

    def on_message_complete(self) -> None:
        """All of it is there."""
        self._awaited = None
        self._wait_no_more()
        self._answer()

    def _answer(self) -> None:
        super().on_message_complete()

    # --- patience ---------------------------------------------------------------------------------

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

    def _take_again(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None
