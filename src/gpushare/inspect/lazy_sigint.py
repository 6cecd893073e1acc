"""Defers Ctrl-C while modules are imported.

An interrupt in the middle of an import prints a traceback and crashes msgspec's C module. It is deferred until the import is done.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def held_back() -> Iterator[None]:
    """Defer ``KeyboardInterrupt`` to the end of the context. For the main thread."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # SIGINT is ignored, as under nohup, or has another handler
        return
    interrupted = False

    def remember(_number: int, _frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True

    signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if interrupted:
        raise KeyboardInterrupt
