"""Waiting for a state with a deadline."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from tests.patience import Deadline

_NEVER_SET = threading.Event()

T = TypeVar("T")

#: For so many times as long as a look took nothing is looked at: looks are programs, and what is waited for needs the machine.
_RESTS = 3.0
_REST_MOST_S = 2.0


class NotReached(TimeoutError):
    """A state did not come in time; the message says which, and what was seen last."""


def pause(seconds: float) -> None:
    """Leave the CPU to others between two looks."""
    _NEVER_SET.wait(seconds)


def wait_for(what: str, look: Callable[[], T], *, timeout: float = 60.0, every: float = 0.05) -> T:
    """Look until what is seen is true, and return it. Seconds, of a machine that is not busy; ``every`` at the least.

    Raises :class:`NotReached` with ``what`` and the last false value or ``OSError`` seen.
    """
    deadline = Deadline(timeout)
    seen: object = None
    while True:
        began = time.monotonic()
        try:
            seen = found = look()
            if found:
                return found
        except OSError as error:
            seen = error
        if deadline.passed():
            raise NotReached(f"{what}: not within {deadline}; last seen: {seen!r}")
        pause(max(every, min(_RESTS * (time.monotonic() - began), _REST_MOST_S)))
