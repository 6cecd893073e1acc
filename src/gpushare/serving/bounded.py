"""HTTP servers with bounds on what a peer may keep us waiting for."""

import asyncio
import ssl
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gpushare.serving.server import Server, server_of

#: Longest time for a request's header to arrive, in seconds, from the connection or its first byte.
HEADER_S: Final = 10.0
_STOP_S: Final = 5
_BACKLOG: Final = 256
#: Connections and requests at once; more are answered with 503.
_MOST_AT_ONCE: Final = 512


class _Hasty(HttpToolsProtocol):
    """Hangs up on who opens a connection or begins a request, and then says no more."""

    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection is there: a request should follow."""
        super().connection_made(transport)
        self._wait()

    def on_message_begin(self) -> None:
        """A request has begun: its header should end."""
        super().on_message_begin()
        self._wait()

    def on_headers_complete(self) -> None:
        """The header is there; the application bounds the rest."""
        self._wait_no_more()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody is there to wait for."""
        self._wait_no_more()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._wait_no_more()
        self._patience = self.loop.call_later(HEADER_S, self.transport.close)

    def _wait_no_more(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


def bounded_server(app: Any, tls: ssl.SSLContext | None = None) -> Server:
    """A server for ``app``; ``serve(sockets=[…])`` runs it until its ``should_exit`` is set."""
    server = server_of(app, stop_s=_STOP_S, http=_Hasty, most_at_once=_MOST_AT_ONCE, backlog=_BACKLOG)
    server.config.load()
    # uvicorn itself takes certificates from files only, once.
    server.config.ssl = tls
    return server
