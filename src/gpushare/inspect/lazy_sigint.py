"""Ctrl-C at a moment when it would do harm: while modules are being imported.

An interrupt in the middle of an import leaves a traceback, and msgspec's C module does not survive one
at all. So it is held back, and takes effect as soon as the import is done.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def held_back() -> Iterator[None]:
    """Raise ``KeyboardInterrupt`` for an interrupt within only at the end. For the main thread."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # ignored, as behind nohup, or somebody else's business
        return
    came = False

    def remember(_number: int, _frame: FrameType | None) -> None:
        nonlocal came
        came = True

    signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if came:
        raise KeyboardInterrupt
