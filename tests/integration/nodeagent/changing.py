"""Waiting for states: every change wakes the waiters, which check again."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from tests.patience import Deadline

DEADLINE_S = 60.0
#: A change without a wake-up is seen within this time.
EVERY_S = 0.02


class Changes:
    """Notified of every change of a scripted partner, from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: set[asyncio.Event] = set()

    def notify(self) -> None:
        self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        for event in self._waiting:
            event.set()

    async def until(
        self,
        state: Callable[[], object],
        what: str = "",
        deadline_s: float = DEADLINE_S,
    ) -> None:
        """Return once ``state()`` holds; fail with ``what`` if it does not in time.

        It also polls every ``EVERY_S``, for states without a notification, such as files.
        """
        event = asyncio.Event()
        self._waiting.add(event)
        deadline = Deadline(deadline_s)
        try:
            while not state():
                assert not deadline.passed(), f"not reached within {deadline}: {what or state}"
                event.clear()
                # Not wait_for: Python 3.11's loses a cancellation that comes with the event.
                with suppress(TimeoutError):
                    async with asyncio.timeout(EVERY_S):
                        await event.wait()
        finally:
            self._waiting.discard(event)
