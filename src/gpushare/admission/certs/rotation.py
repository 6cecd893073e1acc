"""The next rotation step for the stored certificates at a time. Pure.

``current`` is served; ``coming`` is announced: API servers trust it before any replica serves it. Both are
written by whichever replica sees the need first. All else that a replica remembers is for how long it has seen
a generation announced, by a clock that no jump touches; a replica that was killed counts again from nothing,
which makes a rotation later, never earlier.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum

from gpushare.admission.certs.certificates import Generation


@dataclass(frozen=True, slots=True)
class Stored:
    """The generations in the Secret; ``None``: missing or unreadable."""

    current: Generation | None = None
    coming: Generation | None = None


class Step(Enum):
    """The next step of a replica."""

    KEEP = "keep"
    BEGIN = "begin"
    """Make a generation and serve it: none is valid."""
    ANNOUNCE = "announce"
    """Make and announce the next generation."""
    PROMOTE = "promote"
    """Serve the announced generation."""


@dataclass(frozen=True, slots=True)
class Policy:
    """``valid_for``: lifetime of a generation, which is replaced when less than ``renew_before`` remains.

    ``names``: for which servers it must be valid.
    """

    names: frozenset[str]
    valid_for: timedelta
    renew_before: timedelta

    def due(self, generation: Generation, now: datetime) -> bool:
        """Whether ``generation`` should be replaced, although it may still be valid."""
        return now >= generation.not_after - self.renew_before or not self.names <= generation.names


def next_step(stored: Stored, policy: Policy, now: datetime, *, announced_long_enough: bool) -> Step:
    """The next step; ``announced_long_enough``: every API server has had time to trust ``stored.coming``."""
    current, coming = stored.current, stored.coming
    coming_good = coming is not None and coming.valid_at(now) and not policy.due(coming, now)
    if current is None or not current.valid_at(now):
        return Step.PROMOTE if coming_good else Step.BEGIN
    if coming_good:
        return Step.PROMOTE if announced_long_enough else Step.KEEP
    return Step.ANNOUNCE if policy.due(current, now) else Step.KEEP


def after(step: Step, stored: Stored, made: Generation | None) -> Stored:
    """The generations to store after ``step``, with the new generation ``made`` for it."""
    match step:
        case Step.BEGIN:
            return Stored(made)
        case Step.ANNOUNCE:
            return replace(stored, coming=made)
        case Step.PROMOTE:
            return Stored(stored.coming)
        case _:
            return stored
