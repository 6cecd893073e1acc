"""Sockets and pipes that are slow at random, in every Python process that has this folder on its path.

Readiness events are withheld from the event loop now and then, so that answers, watches and calls meet in orders that a
quick machine never shows: ``make soak-slow``. Nothing is lost, and time goes on as ever.
``SLOW_SOCKETS_MS``: how long at most, in milliseconds (nothing is slow without it); ``SLOW_SOCKETS_CHANCE``: how often (0.3).
"""

import asyncio
import os
import random
import selectors
import time
from contextlib import suppress
from typing import Final

MOST_S: Final = float(os.environ.get("SLOW_SOCKETS_MS", "0")) / 1000.0
CHANCE: Final = float(os.environ.get("SLOW_SOCKETS_CHANCE", "0.3"))
#: What became ready while something is held back is seen within this time, in seconds.
LOOK_S: Final = 0.002

Ready = list[tuple[selectors.SelectorKey, int]]


class SlowSelector(selectors.DefaultSelector):
    """The system's selector, but readiness may be reported later."""

    def __init__(self) -> None:
        super().__init__()
        self._due_s: dict[int, float] = {}
        self._random = random.Random()

    def select(self, timeout: float | None = None) -> Ready:
        """As documented there."""
        end_s = float("inf") if timeout is None else time.monotonic() + max(timeout, 0.0)
        while True:
            left_s = None if end_s == float("inf") else max(0.0, end_s - time.monotonic())
            ready = super().select(0.0 if self._due_s else left_s)
            reported = [one for one in ready if self._is_reported(one[0])]
            for fd in self._due_s.keys() - {key.fd for key, _ in ready}:
                del self._due_s[fd]
            if reported or time.monotonic() >= end_s:
                return reported
            if self._due_s:
                time.sleep(max(0.0, min(LOOK_S, min(*self._due_s.values(), end_s) - time.monotonic())))

    def _is_reported(self, key: selectors.SelectorKey) -> bool:
        now_s, due_s = time.monotonic(), self._due_s.get(key.fd)
        if due_s is None and not _is_own(key) and self._random.random() < CHANCE:
            due_s = self._due_s[key.fd] = now_s + self._random.random() ** 2 * MOST_S
        if due_s is not None and due_s > now_s:
            return False
        self._due_s.pop(key.fd, None)
        return True


def _is_own(key: selectors.SelectorKey) -> bool:
    """Whether it is the pipe by which a loop wakes itself: which is not a peer's socket."""
    try:
        callback = key.data[0]._callback  # noqa: SLF001 - asyncio has no public way
    except (AttributeError, IndexError, TypeError):
        return False
    return getattr(callback, "__name__", "") == "_read_from_self"


def _new_loop() -> asyncio.AbstractEventLoop:
    return asyncio.SelectorEventLoop(SlowSelector())


class SlowPolicy(asyncio.DefaultEventLoopPolicy):
    """Makes loops with slow sockets."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        """One of them."""
        return _new_loop()


if MOST_S:
    asyncio.set_event_loop_policy(SlowPolicy())
    with suppress(ImportError):
        import uvloop

        uvloop.new_event_loop = _new_loop
