"""An event loop whose time passes only while it is idle: what runs in it does not depend on how busy the machine is."""

import asyncio
import selectors
from typing import Any


class _Selector(selectors.DefaultSelector):
    """Instead of waiting it lets the time pass."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout:
            self.now_s += timeout
            timeout = 0
        return super().select(timeout)


class IdleTimeLoop(asyncio.SelectorEventLoop):
    """For coroutines that wait for nothing outside the loop."""

    def __init__(self) -> None:
        self._idle = _Selector()
        super().__init__(self._idle)

    def time(self) -> float:
        return self._idle.now_s
