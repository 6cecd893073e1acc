"""``kubectl inspect cgpu --top``: GPU usage of pods, live on a terminal, highest first."""

import contextlib
import os
import select
import shutil
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator
from typing import Final, TextIO

from gpushare.api.request.pluralize import counted
from gpushare.inspect.arguments import Options
from gpushare.inspect.color import Paint
from gpushare.inspect.errors import InspectError
from gpushare.inspect.sources.kubectl import Kubectl
from gpushare.inspect.views.pod_table import ORDERS, table
from gpushare.inspect.views.pods import Rows, rows

_ENTER_SCREEN: Final = "\x1b[?1049h\x1b[?25l"
_LEAVE_SCREEN: Final = "\x1b[?25h\x1b[?1049l"
_HOME: Final = "\x1b[H"
_CLEAR_LINE: Final = "\x1b[K"
_CLEAR_BELOW: Final = "\x1b[J"
_ORDERS: Final = {"m": "memory", "c": "compute"}


def top(kubectl: Kubectl, options: Options, keys: TextIO, out: TextIO) -> None:
    """Refresh until ``q`` or Ctrl-C; ``keys`` and ``out`` are a terminal."""
    paint = Paint(out)
    order = "memory"
    with _screen(keys, out) as resized:
        latest, problem = Rows([], ()), "reading the cluster"
        due_s = 0.0
        while True:
            if time.monotonic() >= due_s:
                latest, problem = _render(kubectl, options, latest)
                due_s = time.monotonic() + options.interval_s
            out.write(_HOME + "\r\n".join(_frame(latest, problem, order, options, paint)) + _CLEAR_BELOW)
            out.flush()
            key = _key(keys, resized, max(due_s - time.monotonic(), 0.0))
            if key == "q":
                return
            order = _ORDERS.get(key, order)


def _render(kubectl: Kubectl, options: Options, before: Rows) -> "tuple[Rows, str]":
    try:
        return rows(kubectl, options.namespace), ""
    except InspectError as error:
        return before, f"{error}; retrying"


def _size() -> "tuple[int, int]":
    """Columns and lines of the terminal itself: $COLUMNS and $LINES do not follow a resize."""
    try:
        size = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        size = os.terminal_size((0, 0))
    return size if all(size) else shutil.get_terminal_size()


def _frame(latest: Rows, problem: str, order: str, options: Options, paint: Paint) -> list[str]:
    """The lines of one screen, cut to its width."""
    width, height = _size()
    shown = sorted(latest.rows, key=ORDERS[order], reverse=True)
    head = f"{counted(len(shown), 'share')} of GPUs, by {order}; every {options.interval_s:g} s; m memory, c compute, q quit"
    header = [head, problem or (latest.remarks[0] if latest.remarks else "")]
    room = max(height - len(header) - 2, 0)
    lines = [*(line[:width] for line in header), *table(shown[:room], paint, width)]
    return [line + _CLEAR_LINE for line in lines[:height]]


@contextlib.contextmanager
def _screen(keys: TextIO, out: TextIO) -> Iterator[int]:
    """The alternate screen with unbuffered keys; yields a file descriptor that is readable after a resize."""
    descriptor = keys.fileno()
    before = termios.tcgetattr(descriptor)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    handler = signal.signal(signal.SIGWINCH, lambda *_: _wake(writing))
    try:
        tty.setcbreak(descriptor)
        out.write(_ENTER_SCREEN)
        out.flush()
        yield reading
    finally:
        signal.signal(signal.SIGWINCH, handler)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
        with contextlib.suppress(OSError):
            out.write(_LEAVE_SCREEN)
            out.flush()
        os.close(reading)
        os.close(writing)


def _wake(descriptor: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.write(descriptor, b"r")


def _key(keys: TextIO, resized: int, wait_s: float) -> str:
    """The next key, ``resize``, or empty after ``wait_s``."""
    ready, _, _ = select.select([keys.fileno(), resized], [], [], wait_s)
    if resized in ready:
        os.read(resized, 64)
        return "resize"
    if not ready:
        return ""
    pressed = os.read(keys.fileno(), 1).decode(errors="replace")
    return pressed or "q"  # end of file: the terminal is closed
