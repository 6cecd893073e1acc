"""A bound on the memory of all request bodies together, and which one is dropped above it."""

from collections.abc import Iterator
from contextlib import contextmanager


class Coming:
    """A body of which parts have arrived. ``is_dropped``: it was discarded, further parts are ignored."""

    def __init__(self, room: "Room | None" = None) -> None:
        self.size = 0
        self.is_dropped = False
        self.is_whole = False
        self._room = room
        self._parts: list[bytes] = []

    def add(self, part: bytes) -> None:
        """Add a part; another body may be dropped for it, or this one."""
        self._parts.append(part)
        self.size += len(part)
        if self._room is not None:
            self._room.grown(len(part))

    def drop(self) -> None:
        """Discard it."""
        self._parts.clear()
        self.size = 0
        self.is_dropped = True

    def whole(self) -> bytes:
        """The whole body; it is not dropped from here on."""
        self.is_whole = True
        body = b"".join(self._parts)
        self._parts.clear()
        return body


class Room:
    """The bodies of one server: at most ``most_bytes`` together, each from its first part to its response.

    Above that, the largest incomplete one is dropped: large senders cannot keep small requests out.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._size = 0
        self._coming: set[Coming] = set()

    @contextmanager
    def body(self) -> Iterator[Coming]:
        """Account for one body until the end of the block."""
        one = Coming(self)
        self._coming.add(one)
        try:
            yield one
        finally:
            self._coming.discard(one)
            self._size -= one.size

    def grown(self, size: int) -> None:
        """A body has grown by so many bytes."""
        self._size += size
        while self._size > self._most_bytes:
            largest = max((one for one in self._coming if not one.is_whole), key=lambda one: one.size)
            self._size -= largest.size
            largest.drop()
