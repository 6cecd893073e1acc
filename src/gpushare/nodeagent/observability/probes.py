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

#: At each address.
_MOST_AT_ONCE: Final = 16
#: Before paths where RBAC knows them, so that nobody takes them for the API server's own.
_PREFIX: Final = "/gpushare"
_JSON: Final = "application/json"
_EXPOSITION: Final = "text/plain; version=0.0.4; charset=utf-8"


class Probes:
    """Serves until closed. ``missing`` says what is not ready yet, a text each; ``figures`` are pages for Prometheus by their path.

    ``pages`` are others by their path, in JSON, for those whom ``readers`` let; they are handed what stands behind the question mark, and
    raise ``ValueError`` where that says nothing to them.
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
        """Listen at all of them, as ``start`` does; none is left open where one cannot be had."""
        opened: list[asyncio.Server] = []
        try:
            for door in doors:
                opened.append(await self.start(*door.address, door.pages))
                at = opened[-1].sockets[0].getsockname()
                logger.info("%s on %s:%d", " and ".join(sorted(door.pages)), *at[:2])
        except OSError:
            for one in opened:
                one.close()
            raise
        return opened

    async def start(self, host: str, port: int, pages: Collection[str] = ALL) -> asyncio.Server:
        """Listen for ``pages``; the caller closes what it gets. Raises ``OSError`` when the address cannot be had."""

        async def answer(get: Get) -> Answer:
            why = elsewhere(get.path, pages)
            return Answer(404, TEXT, f"{why}\n".encode()) if why else await self._answer(get)

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
        there = ", ".join(("/healthz", "/readyz", *self._figures, *self._pages))
        return Answer(404, TEXT, f"there are {there}\n".encode())
