"""``--watch``: poll the cluster, and show it again on every change.

It polls instead of using a watch of the API server because kubectl offers no watch over ``--raw`` that ends cleanly. A delay of two
seconds does no harm.
"""

import contextlib
import random
import time
from collections.abc import Callable
from typing import Final, Protocol, TextIO

from gpushare.inspect.errors import InspectError
from gpushare.inspect.view_result import Shown

LONGEST_WAIT_S: Final = 30.0
_CLEAR_SCREEN: Final = "\x1b[H\x1b[2J\x1b[3J"


class Pause(Protocol):
    """Sleeps between two polls."""

    def __call__(self, seconds: float, /) -> None:
        """Wait for ``seconds``."""


def watch(
    render: Callable[[], Shown],
    out: TextIO,
    complaints: TextIO,
    *,
    interval_s: float,
    separator: str = "\n",
    pause: Pause = time.sleep,
    jitter: Callable[[], float] = random.random,
) -> None:
    """Show the result of ``look`` now and on every change, until interrupted.

    A terminal is redrawn; otherwise the text is appended after ``separator``. A failed poll is retried after a wait that doubles up
    to ``LONGEST_WAIT_S`` (or ``interval_s``, if that is longer), with the reason on ``complaints``. An error of the first poll is raised.
    """
    terminal = out.isatty()
    shown = render()
    _show(shown, out, complaints, before=_CLEAR_SCREEN if terminal else "")
    failures, last_error = 0, ""
    while True:
        pause(_wait_s(interval_s, failures, jitter()))
        try:
            latest = render()
        except InspectError as error:
            failures += 1
            if str(error) != last_error:
                last_error = str(error)
                _print_error(complaints, f"error: {last_error}; retrying")
            continue
        recovered = failures > 0
        failures, last_error = 0, ""
        if latest != shown or (recovered and terminal):
            _show(latest, out, complaints, before=_CLEAR_SCREEN if terminal else separator)
            shown = latest


def _wait_s(interval_s: float, failures: int, jitter: float) -> float:
    if not failures:
        return interval_s
    longest_s = max(LONGEST_WAIT_S, interval_s)
    return min(longest_s, interval_s * 2.0 ** min(failures, 20)) * (0.5 + jitter / 2)


def _show(shown: Shown, out: TextIO, complaints: TextIO, *, before: str) -> None:
    out.write(before + shown.text)
    out.flush()
    for remark in shown.remarks:
        _print_error(complaints, remark)


def _print_error(complaints: TextIO, text: str) -> None:
    with contextlib.suppress(OSError):
        print(text, file=complaints, flush=True)
