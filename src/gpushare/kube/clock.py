"""The clock as an interface, so that tests can control time."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Reads the time and sleeps."""

    def monotonic(self) -> float:
        """Monotonic seconds from an arbitrary start."""

    def time_ns(self) -> int:
        """Nanoseconds since 1970, UTC."""

    async def sleep(self, seconds: float) -> None:
        """Sleep that many seconds."""


class SystemClock:
    """The system clock."""

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
