"""What to do with the stored certificates at a given time. Pure.

``current`` is served; ``coming`` is announced: API servers are told to trust it before anybody serves it. Both are
written by whichever replica sees the need first. All that a replica remembers besides is for how long it has seen
a generation announced, by a clock that no jump touches; a replica that was killed counts again from nothing,
which makes a rotation later, never earlier.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum

from gpushare.admission.certs.certificates import Generation


@dataclass(frozen=True, slots=True)
class Stored:
    """What the Secret holds; ``None``: not there, or not readable."""

    current: Generation | None = None
    coming: Generation | None = None


class Step(Enum):
    """What a replica does next."""

    KEEP = "keep"
    BEGIN = "begin"
    """Make a generation and serve it: there is none that a client accepts."""
    ANNOUNCE = "announce"
    """Make a generation that is to come."""
    PROMOTE = "promote"
    """Serve what was announced."""


@dataclass(frozen=True, slots=True)
class Policy:
    """``valid_for``: lifetime of a generation; it is replaced when less than ``renew_before`` of it is left.

    ``names``: for which servers it must be valid.
    """

    names: frozenset[str]
    valid_for: timedelta
    renew_before: timedelta

    def due(self, generation: Generation, now: datetime) -> bool:
        """Whether ``generation`` should be replaced, though it may be valid still."""
        return now >= generation.not_after - self.renew_before or not self.names <= generation.names


def next_step(stored: Stored, policy: Policy, now: datetime, *, announced_long_enough: bool) -> Step:
    """What to do; ``announced_long_enough``: every API server has had the time to trust ``stored.coming``."""
    current, coming = stored.current, stored.coming
    coming_good = coming is not None and coming.valid_at(now) and not policy.due(coming, now)
    if current is None or not current.valid_at(now):
        return Step.PROMOTE if coming_good else Step.BEGIN
    if coming_good:
        return Step.PROMOTE if announced_long_enough else Step.KEEP
    return Step.ANNOUNCE if policy.due(current, now) else Step.KEEP


def after(step: Step, stored: Stored, made: Generation | None) -> Stored:
    """What the Secret should hold after ``step``, with the generation ``made`` for it."""
    match step:
        case Step.BEGIN:
            return Stored(made)
        case Step.ANNOUNCE:
            return replace(stored, coming=made)
        case Step.PROMOTE:
            return Stored(stored.coming)
        case _:
            return stored
