"""Sends updates to all open pages: numbered, retained for pages that reconnect, and with bounded queues."""

import asyncio
from collections import deque
from typing import Final, NamedTuple

#: Limits of the updates retained for pages that reconnect.
MAX_RETAINED: Final = 1024
MAX_RETAINED_BYTES: Final = 16 * 1024 * 1024
#: Limit of the queue of one page, beyond which it is disconnected.
MAX_QUEUED_BYTES: Final = 4 * 1024 * 1024
MAX_PAGES: Final = 128


class TooManyPages(Exception):
    """The maximum number of pages is open."""


class Frame(NamedTuple):
    """An update: its number, and its encoded form."""

    number: int
    wire: bytes


class Page:
    """The queue of an open page. ``next`` returns ``None`` at its end: the page was too slow, or the server stops.

    ``needs_snapshot``: the page's state is unknown, so it needs a snapshot first.
    """

    def __init__(self, *, needs_snapshot: bool = False) -> None:
        self.needs_snapshot = needs_snapshot
        self._queue: deque[bytes] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()
        self.cut = False

    def put(self, wire: bytes) -> None:
        """Queue data, or disconnect the page if its queue is full."""
        if self.cut:
            return
        if self._queue and self._bytes + len(wire) > MAX_QUEUED_BYTES:
            self.end()
            return
        self._queue.append(wire)
        self._bytes += len(wire)
        self._changed.set()

    def end(self) -> None:
        """End the queue and drop what it contains."""
        self.cut = True
        self._queue.clear()
        self._bytes = 0
        self._changed.set()

    async def next(self, within_s: float) -> bytes | None:
        """All queued data; empty after ``within_s`` without data, ``None`` at the end."""
        try:
            async with asyncio.timeout(within_s):
                await self._changed.wait()
        except TimeoutError:
            return b""
        if self.cut:
            return None
        data = b"".join(self._queue)
        self._queue.clear()
        self._bytes = 0
        self._changed.clear()
        return data


class Stream:
    """Numbers and retains updates. ``epoch`` identifies this process: numbers of another process are meaningless here."""

    def __init__(self, epoch: str) -> None:
        self.epoch = epoch
        self.number = 0
        self._retained: deque[Frame] = deque()
        self._retained_bytes = 0
        self._pages: set[Page] = set()

    @property
    def last_id(self) -> str:
        """The id from which a page resumes after all updates so far."""
        return f"{self.epoch}-{self.number}"

    @property
    def pages(self) -> int:
        """Number of open pages."""
        return len(self._pages)

    def send(self, event: str, data: bytes) -> None:
        """Send an event to every page; ``data`` is JSON in one line."""
        self.number += 1
        wire = b"id: %s\nevent: %s\ndata: %s\n\n" % (self.last_id.encode(), event.encode(), data)
        self._retained.append(Frame(self.number, wire))
        self._retained_bytes += len(wire)
        while len(self._retained) > MAX_RETAINED or self._retained_bytes > MAX_RETAINED_BYTES:
            self._retained_bytes -= len(self._retained.popleft().wire)
        for page in self._pages:
            page.put(wire)

    def listen(self, last_id: str) -> Page:
        """Open a page that has everything up to ``last_id``; later updates are queued, or it needs a snapshot if they are not retained.

        Raises ``TooManyPages``.
        """
        if len(self._pages) >= MAX_PAGES:
            raise TooManyPages
        missed = self._since(last_id)
        page = Page(needs_snapshot=missed is None)
        if missed:
            page.put(b"".join(frame.wire for frame in missed))
        self._pages.add(page)
        return page

    def leave(self, page: Page) -> None:
        """Remove a closed page."""
        self._pages.discard(page)

    def end(self) -> None:
        """End all pages."""
        for page in self._pages:
            page.end()

    def _since(self, last_id: str) -> list[Frame] | None:
        epoch, _, text = last_id.rpartition("-")
        if epoch != self.epoch or not (text.isascii() and text.isdecimal()) or int(text) > self.number:
            return None
        number = int(text)
        retained_after = self._retained[0].number - 1 if self._retained else self.number
        return (
            None if number < retained_after else [frame for frame in self._retained if frame.number > number]
        )
