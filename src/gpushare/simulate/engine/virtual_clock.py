"""An event loop in which nothing takes time: where all wait, its clock jumps to the moment when the first is due.

So what the scheduler waits for (the pods of a gang for each other, a policy's timeout) takes as long as it would, and nobody waits.
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
    """Its time is seconds from 0."""

    def __init__(self) -> None:
        self._at = _NeverWaiting()
        super().__init__(self._at)

    def time(self) -> float:
        """Seconds since the loop was made, by its own clock."""
        return self._at.now_s


class JumpingClock:
    """The loop's time as ``gpushare.kube.clock.Clock`` has it; ``began_ns`` is when it began, since 1970."""

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
    """Run ``work`` to its end in such a loop."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(work)
