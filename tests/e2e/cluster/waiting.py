"""Waiting for a state with a deadline."""

import re
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from tests.patience import SLOWNESS, Deadline

_NEVER_SET = threading.Event()

T = TypeVar("T")

#: Pause between two looks, as a multiple of a look's duration: looks are programs, and what is waited for
#: needs the machine.
_RESTS = 3.0
_REST_MOST_S = 2.0
_BOUND: Final = re.compile(r"--timeout=(\d+)s")


class NotReached(TimeoutError):
    """A state was not reached in time; the message contains which, and what was seen last."""


def pause(seconds: float) -> None:
    """Yield the CPU between two looks."""
    _NEVER_SET.wait(seconds)


def scaled(argv: Iterable[str]) -> list[str]:
    """A command line with its option ``--timeout=SECONDSs``, as of kubectl, longer on a slow machine."""
    bounds = ((one, _BOUND.fullmatch(one)) for one in argv)
    return [f"--timeout={int(bound[1]) * SLOWNESS:.0f}s" if bound else one for one, bound in bounds]


def wait_for(what: str, look: Callable[[], T], *, timeout: float = 60.0, every: float = 0.05) -> T:
    """Poll until the result is true, and return it. Seconds, of a machine that is not busy; ``every`` at the
    least.

    Raises :class:`NotReached` with ``what`` and the last false value or ``OSError`` seen.
    """
    deadline = Deadline(timeout)
    last: object = None
    while True:
        started = time.monotonic()
        try:
            last = found = look()
            if found:
                return found
        except OSError as error:
            last = error
        if deadline.passed():
            raise NotReached(f"{what}: not within {deadline}; last seen: {last!r}")
        pause(max(every, min(_RESTS * (time.monotonic() - started), _REST_MOST_S)))
