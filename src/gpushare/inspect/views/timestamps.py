"""Human-readable times."""

import calendar
import time
from typing import Final

_STEPS: Final = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def ago(seconds: float) -> str:
    """``5m``, ``3h``, ``2d``: in the largest unit of which there are at least two, as kubectl formats ages."""
    whole = max(int(seconds), 0)
    for size, letter in _STEPS:
        if whole >= 2 * size or size == 1:
            return f"{whole // size}{letter}"
    raise AssertionError("seconds are the last step")


def clock(epoch_s: float) -> str:
    """``2026-11-22 12:03:04 UTC``; ``unknown`` for 0."""
    if not epoch_s:
        return "unknown"
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(epoch_s))


def seconds_of(stamp: str) -> float:
    """Seconds since 1970 of ``2026-11-22T12:03:04Z``; 0 for an invalid timestamp."""
    try:
        return float(calendar.timegm(time.strptime(stamp[:19], "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        return 0.0
