"""Events with subscribers.

An observable object has one ``Event`` for each thing that may happen to it. Listeners are called synchronously, in the order in which
they subscribed, before the emitter goes on: no queue and no task lies between, so no subscriber sees a state in between two awaits.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Event(Generic[P]):
    """Calling it calls every listener with the same arguments. Not thread-safe."""

    __slots__ = ("_listeners",)

    def __init__(self) -> None:
        self._listeners: tuple[Callable[P, object], ...] = ()

    def subscribe(self, listener: Callable[P, object]) -> None:
        """Call ``listener`` from now on, after earlier subscribers."""
        self._listeners = (*self._listeners, listener)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:  # noqa: D102 - the class says it
        for listener in self._listeners:
            listener(*args, **kwargs)

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Suppress calls within the block, for trials that are undone."""
        listeners, self._listeners = self._listeners, ()
        try:
            yield
        finally:
            self._listeners = listeners
