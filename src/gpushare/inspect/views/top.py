"""``kubectl inspect cgpu --top``: who uses most, live, on a terminal."""

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

_ENTER: Final = "\x1b[?1049h\x1b[?25l"
_LEAVE: Final = "\x1b[?25h\x1b[?1049l"
_HOME: Final = "\x1b[H"
_REST: Final = "\x1b[K"
_BELOW: Final = "\x1b[J"
_ORDERS: Final = {"m": "memory", "c": "compute"}


def top(kubectl: Kubectl, options: Options, keys: TextIO, out: TextIO) -> None:
    """Show until ``q`` or Ctrl-C; ``keys`` and ``out`` are a terminal."""
    paint = Paint(out)
    order = "memory"
    with _screen(keys, out) as resized:
        found, problem = Rows([], ()), "reading the cluster"
        due_s = 0.0
        while True:
            if time.monotonic() >= due_s:
                found, problem = _look(kubectl, options, found)
                due_s = time.monotonic() + options.interval_s
            out.write(_HOME + "\r\n".join(_frame(found, problem, order, options, paint)) + _BELOW)
            out.flush()
            key = _key(keys, resized, max(due_s - time.monotonic(), 0.0))
            if key == "q":
                return
            order = _ORDERS.get(key, order)


def _look(kubectl: Kubectl, options: Options, before: Rows) -> "tuple[Rows, str]":
    try:
        return rows(kubectl, options.namespace), ""
    except InspectError as error:
        return before, f"{error}; trying again"


def _size() -> "tuple[int, int]":
    """Columns and lines of the terminal as it is: what a variable says of it does not change with it."""
    try:
        size = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        size = os.terminal_size((0, 0))
    return size if all(size) else shutil.get_terminal_size()


def _frame(found: Rows, problem: str, order: str, options: Options, paint: Paint) -> list[str]:
    """The lines of one screen, none longer than it is wide."""
    width, height = _size()
    some = sorted(found.rows, key=ORDERS[order], reverse=True)
    head = f"{counted(len(some), 'share')} of GPUs, by {order}; every {options.interval_s:g} s; m memory, c compute, q leaves"
    told = [head, problem or (found.remarks[0] if found.remarks else "")]
    room = max(height - len(told) - 2, 0)
    lines = [*(line[:width] for line in told), *table(some[:room], paint, width)]
    return [line + _REST for line in lines[:height]]


@contextlib.contextmanager
def _screen(keys: TextIO, out: TextIO) -> Iterator[int]:
    """A screen of our own and keys one by one; gives a file descriptor that is readable when the size changed."""
    descriptor = keys.fileno()
    before = termios.tcgetattr(descriptor)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    handler = signal.signal(signal.SIGWINCH, lambda *_: _wake(writing))
    try:
        tty.setcbreak(descriptor)
        out.write(_ENTER)
        out.flush()
        yield reading
    finally:
        signal.signal(signal.SIGWINCH, handler)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
        with contextlib.suppress(OSError):
            out.write(_LEAVE)
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
    return pressed or "q"  # the terminal is gone
