"""How many connections a server holds at once, and which of them goes when one more comes."""

from typing import Protocol


class Connection(Protocol):
    """A connection of a server."""

    @property
    def is_answered(self) -> bool:
        """Whether a whole request has come, and its answer is not sent yet: nobody hangs up on these."""

    def hang_up(self) -> None:
        """Close it at once, whatever is not sent yet."""


class Crowd:
    """The connections of one server, ``most`` at a time.

    One more takes the place of one that asks for nothing: idle, or still sending its request. Of these goes the oldest of the
    peer that has the most, so whoever opens many connections closes their own, and probes of others pass.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_peer: dict[str, dict[Connection, None]] = {}
        self._count = 0

    def enter(self, one: Connection, peer: str) -> None:
        """Take ``one`` in, or hang up on it where all others are being answered."""
        if self._count >= self._most:
            found = self._to_go()
            if found is None:
                one.hang_up()
                return
            # At once: its end is told later, and others may come meanwhile.
            self.leave(*found)
            found[0].hang_up()
        self._by_peer.setdefault(peer, {})[one] = None
        self._count += 1

    def leave(self, one: Connection, peer: str) -> None:
        """It is closed; nothing happens where it has left already."""
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
