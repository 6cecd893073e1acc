"""``--watch``: look again and again, and show what changed.

Looking is a list, not a watch of the API server's: kubectl offers no watch over ``--raw`` that ends
cleanly, and a table that is two seconds old is no worse than one that is read two seconds late.
"""

import contextlib
import random
import time
from collections.abc import Callable
from typing import Final, Protocol, TextIO

from gpushare.inspect.errors import InspectError
from gpushare.inspect.view_result import Shown

LONGEST_WAIT_S: Final = 30.0
_CLEARED: Final = "\x1b[H\x1b[2J\x1b[3J"


class Pause(Protocol):
    """How time passes between two looks."""

    def __call__(self, seconds: float, /) -> None:
        """Wait for ``seconds``."""


def watch(
    look: Callable[[], Shown],
    out: TextIO,
    complaints: TextIO,
    *,
    interval_s: float,
    separator: str = "\n",
    pause: Pause = time.sleep,
    jitter: Callable[[], float] = random.random,
) -> None:
    """Show what ``look`` gives, now and on every change, until interrupted.

    On a terminal the screen is drawn anew; anywhere else the text is appended after ``separator``. A look
    that fails is tried again after a wait that doubles up to ``LONGEST_WAIT_S`` (or ``interval_s``, if
    that is longer), with the reason on ``complaints``; the very first one raises, as nothing was shown.
    """
    terminal = out.isatty()
    shown = look()
    _show(shown, out, complaints, before=_CLEARED if terminal else "")
    failures, said = 0, ""
    while True:
        pause(_wait_s(interval_s, failures, jitter()))
        try:
            now = look()
        except InspectError as error:
            failures += 1
            if str(error) != said:
                said = str(error)
                _say(complaints, f"error: {said}; trying again")
            continue
        recovered = failures > 0
        failures, said = 0, ""
        if now != shown or (recovered and terminal):
            _show(now, out, complaints, before=_CLEARED if terminal else separator)
            shown = now


def _wait_s(interval_s: float, failures: int, jitter: float) -> float:
    if not failures:
        return interval_s
    longest_s = max(LONGEST_WAIT_S, interval_s)
    return min(longest_s, interval_s * 2.0 ** min(failures, 20)) * (0.5 + jitter / 2)


def _show(shown: Shown, out: TextIO, complaints: TextIO, *, before: str) -> None:
    out.write(before + shown.text)
    out.flush()
    for remark in shown.remarks:
        _say(complaints, remark)


def _say(complaints: TextIO, text: str) -> None:
    with contextlib.suppress(OSError):
        print(text, file=complaints, flush=True)
