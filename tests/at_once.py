"""Run a coroutine that never waits for anything but its turn to its end, without an event loop."""

from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


def at_once(work: Coroutine[Any, Any, _T]) -> _T:
    """The result of ``work``."""
    while True:
        try:
            work.send(None)
        except StopIteration as end:
            found: _T = end.value
            return found
