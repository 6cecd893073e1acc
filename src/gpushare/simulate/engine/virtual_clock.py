"""An event loop in which nothing takes time: when all tasks wait, its clock jumps to the time of the first timer.

So waiting in the scheduler (for the pods of a gang, a policy's timeout) has its usual length in virtual time, but takes no real time.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _NeverWaiting(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("all wait, and for nothing that will come")
            self.now_s += max(timeout, 0.0)
        return ready


class JumpingLoop(asyncio.SelectorEventLoop):
    """Its time starts at 0 seconds."""

    def __init__(self) -> None:
        self._at = _NeverWaiting()
        super().__init__(self._at)

    def time(self) -> float:
        """Seconds since the loop was created, by its own clock."""
        return self._at.now_s


class JumpingClock:
    """The loop's time as a ``gpushare.kube.clock.Clock``; ``began_ns`` is its start since 1970."""

    def __init__(self, began_ns: int) -> None:
        self._began_ns = began_ns

    def monotonic(self) -> float:
        """Seconds of the running loop."""
        return asyncio.get_running_loop().time()

    def time_ns(self) -> int:
        """Nanoseconds since 1970."""
        return self._began_ns + int(self.monotonic() * 1e9)

    async def sleep(self, seconds: float) -> None:
        """Wait that long by the loop's clock."""
        await asyncio.sleep(seconds)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` to completion in such a loop."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(work)
