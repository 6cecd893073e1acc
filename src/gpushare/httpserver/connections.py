"""A bound on the connections of a server, and which one is closed for a new one."""

from typing import Protocol


class Connection(Protocol):
    """A connection of a server."""

    @property
    def is_answered(self) -> bool:
        """Whether a complete request has arrived and its response is not sent yet: such connections are not closed."""

    def hang_up(self) -> None:
        """Close it immediately, whatever is not sent yet."""


class Crowd:
    """The connections of one server, ``most`` at a time.

    A new one replaces one that is idle or still sending its request: the oldest of the peer that has the most, so that
    a peer that opens many connections only loses its own.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_peer: dict[str, dict[Connection, None]] = {}
        self._count = 0

    def enter(self, one: Connection, peer: str) -> None:
        """Admit ``one``, or close it if all others are being answered."""
        if self._count >= self._most:
            found = self._to_go()
            if found is None:
                one.hang_up()
                return
            # Immediately: the event loop reports its end later, and others may arrive meanwhile.
            self.leave(*found)
            found[0].hang_up()
        self._by_peer.setdefault(peer, {})[one] = None
        self._count += 1

    def leave(self, one: Connection, peer: str) -> None:
        """It is closed; no-op if it was removed already."""
        of_peer = self._by_peer.get(peer, {})
        if one in of_peer:
            del of_peer[one]
            self._count -= 1
            if not of_peer:
                del self._by_peer[peer]

    def _to_go(self) -> tuple[Connection, str] | None:
        for peer, of_peer in sorted(self._by_peer.items(), key=lambda item: len(item[1]), reverse=True):
            for one in of_peer:
                if not one.is_answered:
                    return one, peer
        return None
