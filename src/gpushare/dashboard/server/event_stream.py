"""News to every page that listens: numbered, kept for a while for who lost the connection, never queued without bound."""

import asyncio
from collections import deque
from typing import Final, NamedTuple

#: What is kept for who comes back: news and bytes of it.
MOST_KEPT: Final = 1024
MOST_KEPT_BYTES: Final = 16 * 1024 * 1024
#: What may wait for one page before it is cut off.
MOST_WAITING_BYTES: Final = 4 * 1024 * 1024
MOST_PAGES: Final = 128


class TooManyPages(Exception):
    """As many pages listen as may."""


class Frame(NamedTuple):
    """A piece of news: its number, and how it goes over the wire."""

    number: int
    wire: bytes


class Page:
    """Who listens. ``next`` waits for more; ``None`` is the end: it was too slow, or the server ends.

    ``anew``: nothing can be said of what it knows already, so it has to be given everything first.
    """

    def __init__(self, *, anew: bool = False) -> None:
        self.anew = anew
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._woken = asyncio.Event()
        self.cut = False

    def put(self, wire: bytes) -> None:
        """Queue something, or cut the page off where too much waits already."""
        if self.cut:
            return
        if self._waiting and self._bytes + len(wire) > MOST_WAITING_BYTES:
            self.end()
            return
        self._waiting.append(wire)
        self._bytes += len(wire)
        self._woken.set()

    def end(self) -> None:
        """No more comes, and what waits is dropped."""
        self.cut = True
        self._waiting.clear()
        self._bytes = 0
        self._woken.set()

    async def next(self, within_s: float) -> bytes | None:
        """What has come, together; empty when nothing has within that time, ``None`` at the end."""
        try:
            async with asyncio.timeout(within_s):
                await self._woken.wait()
        except TimeoutError:
            return b""
        if self.cut:
            return None
        found = b"".join(self._waiting)
        self._waiting.clear()
        self._bytes = 0
        self._woken.clear()
        return found


class Stream:
    """Numbers and keeps news. ``epoch`` is this process's own: numbers of another mean nothing here."""

    def __init__(self, epoch: str) -> None:
        self.epoch = epoch
        self.number = 0
        self._kept: deque[Frame] = deque()
        self._kept_bytes = 0
        self._pages: set[Page] = set()

    @property
    def last_id(self) -> str:
        """What a page names to go on after all news so far."""
        return f"{self.epoch}-{self.number}"

    @property
    def pages(self) -> int:
        """How many listen."""
        return len(self._pages)

    def send(self, event: str, data: bytes) -> None:
        """Tell every page; ``data`` is JSON in one line."""
        self.number += 1
        wire = b"id: %s\nevent: %s\ndata: %s\n\n" % (self.last_id.encode(), event.encode(), data)
        self._kept.append(Frame(self.number, wire))
        self._kept_bytes += len(wire)
        while len(self._kept) > MOST_KEPT or self._kept_bytes > MOST_KEPT_BYTES:
            self._kept_bytes -= len(self._kept.popleft().wire)
        for page in self._pages:
            page.put(wire)

    def listen(self, last_id: str) -> Page:
        """A page that knows all until ``last_id``: what came since comes first; where that is not kept, it begins ``anew``.

        Raises ``TooManyPages``.
        """
        if len(self._pages) >= MOST_PAGES:
            raise TooManyPages
        missed = self._since(last_id)
        page = Page(anew=missed is None)
        if missed:
            page.put(b"".join(frame.wire for frame in missed))
        self._pages.add(page)
        return page

    def leave(self, page: Page) -> None:
        """The page listens no more."""
        self._pages.discard(page)

    def end(self) -> None:
        """Let every page go."""
        for page in self._pages:
            page.end()

    def _since(self, last_id: str) -> list[Frame] | None:
        epoch, _, text = last_id.rpartition("-")
        if epoch != self.epoch or not (text.isascii() and text.isdecimal()) or int(text) > self.number:
            return None
        number = int(text)
        kept_after = self._kept[0].number - 1 if self._kept else self.number
        return None if number < kept_after else [frame for frame in self._kept if frame.number > number]
