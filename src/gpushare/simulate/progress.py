"""A progress bar on a terminal's standard error; without a terminal nothing is shown."""

import time
from typing import Final, TextIO

_WIDTH: Final = 32
_EVERY_S: Final = 0.1


class Bar:
    """``shown(done, of)`` draws at most ten times a second; ``end`` clears the line. Does nothing if ``out`` is not a terminal."""

    def __init__(self, out: TextIO | None, unit: str) -> None:
        self._out = out if out is not None and out.isatty() else None
        self._unit = unit
        self._drawn_s = float("-inf")
        self._length = 0

    def shown(self, done: int, of: int) -> None:
        """``done`` of ``of`` are complete."""
        filled = _WIDTH * done // max(of, 1)
        self._draw(f"[{'#' * filled}{' ' * (_WIDTH - filled)}] {done}/{of} {self._unit}", last=done >= of)

    def show_text(self, text: str) -> None:
        """Show a text in place of the bar."""
        self._draw(text, last=True)

    def _draw(self, text: str, *, last: bool) -> None:
        if self._out is None or (not last and time.monotonic() < self._drawn_s + _EVERY_S):
            return
        self._drawn_s = time.monotonic()
        self._out.write(f"\r{text.ljust(self._length)}")
        self._out.flush()
        self._length = len(text)

    def end(self) -> None:
        """Clear the line."""
        if self._out is not None and self._length:
            self._out.write(f"\r{' ' * self._length}\r")
            self._out.flush()
            self._length = 0
