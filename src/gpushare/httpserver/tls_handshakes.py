"""TLS connections from their first byte: counted, and closed if the handshake does not complete.

asyncio's and uvloop's servers report a connection only after its handshake, so nothing would bound how many there are.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from gpushare.httpserver.connections import Crowd

logger = logging.getLogger(__name__)

#: Timeout of a handshake, in seconds.
HANDSHAKE_S: Final = 10.0
#: Pause after a failed accept, mostly for lack of file descriptors, in seconds.
_REST_S: Final = 0.1


class _Handshake:
    """One connection until the end of its handshake."""

    is_answered = False

    def __init__(self, accepted: socket.socket, peer: str) -> None:
        self.accepted = accepted
        self.peer = peer

    def hang_up(self) -> None:
        """Close it; the handshake ends, or never begins."""
        with suppress(OSError):
            self.accepted.shutdown(socket.SHUT_RDWR)


class Handshakes:
    """Has a protocol of ``make`` take over each connection of ``listening`` whose handshake has ended, until closed.

    ``crowd`` bounds how many there are beside those that it has been shown otherwise.
    """

    def __init__(
        self,
        listening: socket.socket,
        make: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext,
        crowd: Crowd,
    ) -> None:
        self._listening = listening
        self._make = make
        self._tls = tls
        self._crowd = crowd
        self._tasks = {asyncio.create_task(self._accept(), name="accepting")}

    def close(self) -> None:
        """Accept no more connections; running handshakes end."""
        for task in self._tasks:
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until they have ended."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(self._listening)
            except OSError as error:
                logger.debug("a connection was not accepted: %s", error)
                await asyncio.sleep(_REST_S)
                continue
            one = _Handshake(accepted, address[0])
            self._crowd.enter(one, one.peer)
            task = asyncio.create_task(self._shake_hands(one))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            # Yield to other tasks when very many connections are waiting.
            await asyncio.sleep(0)

    async def _shake_hands(self, one: _Handshake) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make, one.accepted, ssl=self._tls, ssl_handshake_timeout=HANDSHAKE_S
            )
        except (OSError, TimeoutError) as error:  # of which ssl.SSLError is one
            logger.debug("a handshake with %s failed: %r", one.peer, error)
        finally:
            self._crowd.leave(one, one.peer)
