"""The lateness of the machine's timers during a measurement, which limits the accuracy of rows."""

import threading
import time
from types import TracebackType
from typing import Self

STEP_SECONDS = 0.005
#: A timer later than this has delayed an arbiter or a program.
LATE_SECONDS = 0.025


class Lateness:
    """Use as a context: a separate thread sleeps repeatedly, and notes when it wakes up late."""

    def __init__(self) -> None:
        self.worst_s = self._late_s = 0.0
        self._began_s = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        before_s = time.monotonic()
        while not self._over.wait(STEP_SECONDS):
            now_s = time.monotonic()
            self.note(now_s - before_s - STEP_SECONDS)
            before_s = now_s

    def note(self, late_s: float) -> None:
        """Record a timer's lateness."""
        self.worst_s = max(self.worst_s, late_s)
        if late_s > LATE_SECONDS:
            self._late_s += late_s

    def summary(self) -> str:
        """A readable line."""
        percent = 100 * self._late_s / max(time.monotonic() - self._began_s, 1e-9)
        return f"timers late for {percent:.1f}% of the time, by {1000 * self.worst_s:.0f} ms at worst"
