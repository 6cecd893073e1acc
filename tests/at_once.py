"""A coroutine that waits for nothing but its turn, run to its end where no event loop can be waited for."""

from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


def at_once(work: Coroutine[Any, Any, _T]) -> _T:
    """What ``work`` returns."""
    while True:
        try:
            work.send(None)
        except StopIteration as end:
            found: _T = end.value
            return found
