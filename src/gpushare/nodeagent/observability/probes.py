"""``/healthz``, ``/readyz`` and the metrics pages of a node agent."""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from gpushare.httpserver.authorization import Readers
from gpushare.httpserver.exchange import Refusal
from gpushare.httpserver.listeners import ALL, Door, elsewhere
from gpushare.httpserver.small_http import TEXT, Answer, Get, SmallServer

logger = logging.getLogger(__name__)

#: Connections per address.
_MOST_AT_ONCE: Final = 16
#: Prefix of paths in RBAC rules, so that they are not mistaken for the API server's own.
_PREFIX: Final = "/gpushare"
_JSON: Final = "application/json"
_EXPOSITION: Final = "text/plain; version=0.0.4; charset=utf-8"


class Probes:
    """Serves until closed. ``missing`` returns what is not ready yet, one text each; ``figures`` are pages for Prometheus by path.

    ``pages`` are JSON pages by path, for clients that ``readers`` authorize. They take the query string, and raise ``ValueError`` if it is
    not valid.
    """

    def __init__(
        self,
        missing: Callable[[], list[str]],
        figures: Mapping[str, Callable[[], bytes]],
        pages: Mapping[str, Callable[[str], bytes]],
        readers: Readers,
    ) -> None:
        self._missing = missing
        self._figures = figures
        self._pages = pages
        self._readers = readers

    async def open(self, doors: Iterable[Door]) -> list[asyncio.Server]:
        """Listen at all addresses, as ``start`` does; closes all if one is not available."""
        opened: list[asyncio.Server] = []
        try:
            for door in doors:
                opened.append(await self.start(*door.address, door.pages))
                at = opened[-1].sockets[0].getsockname()
                logger.info("%s on %s:%d", " and ".join(sorted(door.pages)), *at[:2])
        except OSError:
            for server in opened:
                server.close()
            raise
        return opened

    async def start(self, host: str, port: int, pages: Collection[str] = ALL) -> asyncio.Server:
        """Listen for ``pages``; the caller closes the server. Raises ``OSError`` if the address is not available."""

        async def answer(get: Get) -> Answer:
            redirect = elsewhere(get.path, pages)
            return Answer(404, TEXT, f"{redirect}\n".encode()) if redirect else await self._answer(get)

        return await SmallServer(answer, _MOST_AT_ONCE).start(host, port)

    async def _answer(self, get: Get) -> Answer:
        if get.path == "/healthz":
            return Answer(200, TEXT, b"ok\n")
        if get.path == "/readyz":
            missing = "".join(f"{one}\n" for one in self._missing())
            return Answer(503, TEXT, missing.encode()) if missing else Answer(200, TEXT, b"ok\n")
        if get.path in self._figures:
            return Answer(200, _EXPOSITION, self._figures[get.path]())
        if get.path in self._pages:
            try:
                await self._readers.check(get.token, f"{_PREFIX}{get.path}")
                return Answer(200, _JSON, self._pages[get.path](get.query))
            except Refusal as refusal:
                return Answer(refusal.status, TEXT, f"{refusal}\n".encode())
            except ValueError as error:
                return Answer(400, TEXT, f"{error}\n".encode())
        paths = ", ".join(("/healthz", "/readyz", *self._figures, *self._pages))
        return Answer(404, TEXT, f"there are {paths}\n".encode())
