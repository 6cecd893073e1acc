"""Time as a seam, so that tests own it."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """What tells the time and waits."""

    def monotonic(self) -> float:
        """Seconds from an unknown beginning, never going back."""

    def time_ns(self) -> int:
        """Nanoseconds since 1970, UTC."""

    async def sleep(self, seconds: float) -> None:
        """Wait that many seconds."""


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        """``time.monotonic``."""
        return time.monotonic()

    def time_ns(self) -> int:
        """``time.time_ns``."""
        return time.time_ns()

    async def sleep(self, seconds: float) -> None:
        """``asyncio.sleep``."""
        await asyncio.sleep(seconds)


SYSTEM_CLOCK = SystemClock()
