"""How much memory the bodies of requests may take together, and which of them gives way."""

from collections.abc import Iterator
from contextlib import contextmanager


class Coming:
    """A body of which parts have come. ``is_dropped``: what there was of it is gone, and more need not come."""

    def __init__(self, room: "Room | None" = None) -> None:
        self.size = 0
        self.is_dropped = False
        self.is_whole = False
        self._room = room
        self._parts: list[bytes] = []

    def add(self, part: bytes) -> None:
        """Keep a part more; another body may be dropped for it, or this one."""
        self._parts.append(part)
        self.size += len(part)
        if self._room is not None:
            self._room.grown(len(part))

    def drop(self) -> None:
        """Keep nothing of it."""
        self._parts.clear()
        self.size = 0
        self.is_dropped = True

    def whole(self) -> bytes:
        """All parts, once the last has come; it is not dropped any more."""
        self.is_whole = True
        body = b"".join(self._parts)
        self._parts.clear()
        return body


class Room:
    """The bodies of one server: ``most_bytes`` of them at a time, from their first part to their answer.

    Where there are more, the largest that is still coming is dropped: whoever sends much makes room for who sends little.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._size = 0
        self._coming: set[Coming] = set()

    @contextmanager
    def body(self) -> Iterator[Coming]:
        """A place for one, until the end of the block."""
        one = Coming(self)
        self._coming.add(one)
        try:
            yield one
        finally:
            self._coming.discard(one)
            self._size -= one.size

    def grown(self, size: int) -> None:
        """One has so many bytes more."""
        self._size += size
        while self._size > self._most_bytes:
            largest = max((one for one in self._coming if not one.is_whole), key=lambda one: one.size)
            self._size -= largest.size
            largest.drop()
