"""A separate process that faces the network for one whose event loop must not be blocked.

Usage: ``python -m gpushare.httpserver.relay SOCKET FD=PAGES…``. SOCKET is the abstract Unix socket of the process behind, FD a listening socket that
it inherits, PAGES what is answered there (``gpushare.httpserver.listeners``), with commas between. However many ask, the process behind is asked for each page a few times a second at
most, one question of a kind after the other, and is left alone for a multiple of the time that an answer took it.
"""

import asyncio
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Collection
from contextlib import AsyncExitStack
from typing import Final

from gpushare.api import names
from gpushare.httpserver.listeners import elsewhere
from gpushare.httpserver.small_http import TEXT, Answer, Get, SmallServer
from gpushare.kube.clock import SYSTEM_CLOCK, Clock

#: How long a response is reused for the same request, in seconds.
FRESH_S: Final = 0.25
#: Pause between requests of a kind, as a multiple of the last response time, and its maximum in seconds: a probe after one
#: that timed out is answered in time.
_REST: Final = 4.0
_MOST_REST_S: Final = 0.5
#: Response timeout, in seconds: less than the timeout of probes.
_ANSWER_S: Final = 4.0
#: Maximum pending distinct requests of a kind, and of these with one token, or without.
_MOST_WAITING: Final = 64
_MOST_OF_ONE: Final = 32
_MOST_AT_ONCE: Final = 512
#: Each of these is a kind of its own, so that none waits for another; everything else is one more kind.
_KINDS: Final = ("/healthz", "/readyz", "/metrics")
_LESS_URGENT: Final = 10
_DIES_WITH_PARENT: Final = 1

AskFn = Callable[[Get], Awaitable[Answer]]


class _Kind:
    """Requests that are sent one after the other."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.rests_until_s = 0.0
        self.asked: dict[Get, asyncio.Task[Answer]] = {}
        self.kept: dict[Get, tuple[Answer, float]] = {}


class Relay:
    """Answers requests, reusing recent responses of ``ask``."""

    def __init__(self, ask: AskFn, clock: Clock = SYSTEM_CLOCK) -> None:
        self._ask = ask
        self._clock = clock
        self._kinds: dict[str, _Kind] = {}

    async def answer(self, get: Get) -> Answer:
        """The response of the process behind, or 503 if it does not answer or too many requests are pending."""
        if get.path in _KINDS:
            # Nothing else matters to the response; otherwise a client could fill the places of probes with made-up queries.
            get = Get(get.path, takes_gzip=get.takes_gzip and get.path == "/metrics")
        kind = self._kinds.setdefault(get.path if get.path in _KINDS else "", _Kind())
        kept, until_s = kind.kept.get(get, (None, 0.0))
        if kept is not None and self._clock.monotonic() < until_s:
            return kept
        asked = kind.asked.get(get)
        if asked is None:
            of_one = sum(one.token == get.token for one in kind.asked)
            if len(kind.asked) >= _MOST_WAITING or of_one >= _MOST_OF_ONE:
                return Answer(503, TEXT, b"too many requests at once; retry in a second\n")
            asked = kind.asked[get] = asyncio.create_task(self._asked(kind, get))
        # The first requester may disconnect; others wait for the same response.
        return await asyncio.shield(asked)

    async def _asked(self, kind: _Kind, get: Get) -> Answer:
        try:
            async with kind.turn:
                await self._clock.sleep(max(0.0, kind.rests_until_s - self._clock.monotonic()))
                began_s = self._clock.monotonic()
                try:
                    async with asyncio.timeout(_ANSWER_S):
                        answer = await self._ask(get)
                except (OSError, EOFError, ValueError, TimeoutError) as error:
                    said = f"the main process does not respond: {str(error) or type(error).__name__}\n"
                    answer = Answer(503, TEXT, said.encode())
                now_s = self._clock.monotonic()
                kind.rests_until_s = now_s + min(_REST * (now_s - began_s), _MOST_REST_S)
                fresh = {one: kept for one, kept in kind.kept.items() if kept[1] > now_s}
                kind.kept = {**fresh, get: (answer, now_s + FRESH_S)}
                return answer
        finally:
            del kind.asked[get]


def asking(name: str) -> AskFn:
    """A client of the process that listens on the abstract Unix socket ``name``; it raises ``OSError``, ``EOFError`` or ``ValueError``."""

    async def ask(get: Get) -> Answer:
        reader, writer = await asyncio.open_unix_connection(f"\0{name}")
        try:
            target = f"{get.path}?{get.query}" if get.query else get.path
            lines = [f"GET {target} HTTP/1.1", "Host: relay", "Connection: close"]
            lines += ["Accept-Encoding: gzip"] if get.takes_gzip else []
            lines += [f"{names.READER_HEADER}: {get.token}"] if get.token else []
            writer.write("\r\n".join((*lines, "", "")).encode("latin-1"))
            first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
            fields = {key.lower(): value.strip() for key, _, value in (one.partition(":") for one in lines)}
            body = await reader.readexactly(int(fields["content-length"]))
            kind, encoding = fields.get("content-type", TEXT), fields.get("content-encoding", "")
            return Answer(int(first.split()[1]), kind, body, encoding)
        except (KeyError, IndexError, asyncio.LimitOverrunError) as error:
            raise ValueError(f"no answer of HTTP: {error!r}") from None
        finally:
            writer.close()

    return ask


def at_door(answer: AskFn, pages: Collection[str]) -> AskFn:
    """``answer`` restricted to ``pages``; 404 for all others."""

    async def answered(get: Get) -> Answer:
        if why := elsewhere(get.path, pages):
            return Answer(404, TEXT, f"{why}\n".encode())
        return await answer(get)

    return answered


async def _serve(name: str, doors: dict[socket.socket, list[str]]) -> None:
    relay = Relay(asking(name))
    async with AsyncExitStack() as open_doors:
        for listening, pages in doors.items():
            # Separate connection limits: exhausting one listener does not affect the others.
            door = SmallServer(at_door(relay.answer, pages), _MOST_AT_ONCE)
            await open_doors.enter_async_context(await door.start_on(listening))
        await asyncio.Event().wait()


def main() -> int:
    """Serve until killed."""
    name, *arguments = sys.argv[1:]
    parent = os.getppid()
    # It holds the ports, which the parent's successor needs.
    ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        return 1
    os.nice(_LESS_URGENT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    doors = {}
    for one in arguments:
        number, _, pages = one.partition("=")
        listening = socket.socket(fileno=int(number))
        listening.setblocking(False)
        doors[listening] = pages.split(",")
    asyncio.run(_serve(name, doors))
    return 0


if __name__ == "__main__":
    sys.exit(main())
