"""Deadlines that scale with the machine: longer on slow processors, and time for which processors were short does not count."""

import re
import subprocess
import time
from pathlib import Path
from typing import Final

_PRESSURE: Final = Path("/proc/pressure/cpu")
_SOME: Final = re.compile(r"^some .*total=(\d+)", re.MULTILINE)
#: Even on a busy machine a deadline passes after this many times its length.
_MOST_TIMES: Final = 5.0
#: A loop, and the seconds of processor time from which on a processor counts as slow; chosen: 0.003 to 0.006 were measured on usual machines.
_LOOP: Final = range(100_000)
_LOOP_S: Final = 0.01


def loop_s() -> float:
    """Seconds of processor time that this processor takes for a loop."""

    def once_s() -> float:
        began_s = time.thread_time()
        for _ in _LOOP:
            pass
        return time.thread_time() - began_s

    return min(once_s() for _ in range(3))


#: How many times longer than on the machines for which deadlines are written this processor takes; 1 on those and faster ones.
SLOWNESS: Final = max(1.0, loop_s() / _LOOP_S)


def starved_s() -> float:
    """Seconds since boot in which some process waited for a processor; 0 if the kernel does not report it."""
    try:
        found = _SOME.search(_PRESSURE.read_text())
    except OSError:
        return 0.0
    return int(found[1]) / 1e6 if found else 0.0


class Deadline:
    """A deadline ``seconds`` from now, times ``SLOWNESS``, not counting time in which processes wait for a processor."""

    def __init__(self, seconds: float) -> None:
        now, seconds = time.monotonic(), seconds * SLOWNESS
        self._seconds = seconds
        self._end = now + seconds
        self._latest = now + seconds * _MOST_TIMES
        self._starved = starved_s()

    def left_s(self) -> float:
        """Seconds left if nothing waits for a processor from now on; 0 or less once it has passed."""
        now = time.monotonic()
        return min(self._end + starved_s() - self._starved, self._latest) - now

    def passed(self) -> bool:
        """Whether it is over."""
        return self.left_s() <= 0

    def __str__(self) -> str:
        return f"{self._seconds:g} s"


def communicate(process: "subprocess.Popen[str]", stdin: str, timeout_s: float) -> tuple[str, str]:
    """``process.communicate(stdin)`` with a deadline that scales; kills the process when it passes.

    Raises ``subprocess.TimeoutExpired``.
    """
    deadline = Deadline(timeout_s)
    while True:
        try:
            return process.communicate(stdin, timeout=max(deadline.left_s(), 0.0))
        except subprocess.TimeoutExpired as error:
            if deadline.passed():
                error.timeout = timeout_s
                process.kill()
                process.communicate()
                raise
