"""What containers may take of one GPU at this moment, where that changes while they run. Pure; amounts in MiB.

The sum of all requests and of what anybody may take above a request never exceeds what the GPU has. So memory that is taken from one
container counts as its own until a sample shows that it is free, and only then may another one take it.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gpushare.api.node.overuse_threshold import is_over_memory


class Sharer(NamedTuple):
    """A container whose memory is limited by an allowance.

    ``used``: by the last sample. ``allowed``: what it may take now. ``may_hold``: what it was allowed, if it may have taken that since the last
    sample began; else 0.
    """

    key: str
    request: int
    limit: int
    used: int
    allowed: int
    may_hold: int

    @property
    def above(self) -> int:
        """What it uses above its request, up to its limit; a little that the driver takes by itself does not count."""
        return min(self.used, self.limit) - self.request if is_over_memory(self.used, self.request) else 0

    @property
    def may_hold_above(self) -> int:
        """The most that it may have above its request at this moment."""
        return max(self.allowed - self.request, self.may_hold - self.request, self.above, 0)


def plan(free: int, sharers: Sequence[Sharer]) -> dict[str, int]:
    """What each may take from now on, by key. ``free``: what no pod has requested; ``sharers``: the oldest first."""
    extras = _extras(free, sharers)
    committed = {one.key: one.may_hold_above for one in sharers}
    spare = free - sum(committed.values())
    withheld = _withheld(-spare, sharers)
    allowed = {}
    for one in sharers:
        if one.key in withheld:
            allowed[one.key] = one.request - withheld[one.key]
            continue
        more = min(max(extras[one.key] - committed[one.key], 0), max(spare, 0))
        spare -= more
        allowed[one.key] = one.request + min(extras[one.key], committed[one.key] + more)
    return allowed


def short_mib(free: int, sharers: Sequence[Sharer]) -> int:
    """What has to be given back, so that everybody can have its request."""
    return max(sum(one.above for one in sharers) - free, 0)


def victims(free: int, sharers: Sequence[Sharer]) -> list[Sharer]:
    """The containers that have to give memory back: those that use most above their request, as few as suffice."""
    short, chosen = short_mib(free, sharers), []
    for one in sorted(sharers, key=lambda one: -one.above):
        if short <= 0 or not one.above:
            break
        chosen.append(one)
        short -= one.above
    return chosen


def _extras(free: int, sharers: Sequence[Sharer]) -> Mapping[str, int]:
    """What each should be able to take above its request: what it uses, and an equal part of what nobody uses, up to its limit.

    Nothing while memory has to be given back.
    """
    if short_mib(free, sharers):
        return {one.key: 0 for one in sharers}
    extras = {one.key: min(one.above, one.limit - one.request) for one in sharers}
    spare = free - sum(extras.values())
    # Those with the least room first: what they cannot take is the others'.
    by_room = sorted(sharers, key=lambda one: one.limit - one.request - extras[one.key])
    for number, one in enumerate(by_room):
        part = min(one.limit - one.request - extras[one.key], max(spare, 0) // (len(by_room) - number))
        extras[one.key] += part
        spare -= part
    return extras


def _withheld(short: int, sharers: Sequence[Sharer]) -> Mapping[str, int]:
    """What containers that never had their whole request have to wait for: the youngest first."""
    withheld: dict[str, int] = {}
    for one in reversed(sharers):
        if short > 0 and one.allowed < one.request:
            withheld[one.key] = min(one.request - min(one.used, one.request), short)
            short -= withheld[one.key]
    return withheld
