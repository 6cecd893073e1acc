"""The pending pods.

A pod is in one of four places: *active* (to be tried next, by priority, then by waiting time),
*backing off* after a failed attempt (1 s, doubled up to 10 s), *unschedulable* (until something happens that
might help), or *gated*. It leaves all of them during an attempt. Events during an attempt are
remembered, so that a pod that fails is not set aside after the very event that would have helped it.

As in kube-scheduler 1.36, the loop takes a pod that is backing off when nothing is active, so that
pending pods are tried again immediately when something changes; only after an error is the back-off
always waited out. Source: ``pkg/scheduler/backend/queue``.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from gpushare_playground.objects import Json, spec_of, uid_of

FIRST_BACKOFF_S: Final = 1.0
LONGEST_BACKOFF_S: Final = 10.0
FLUSH_EVERY_S: Final = 30.0
LAID_ASIDE_MOST_S: Final = 300.0
"""After this time a pod is tried again even without an event."""


class Event(Enum):
    """Changes in a cluster that may make an unschedulable pod schedulable."""

    NODE_ADDED = "node added"
    NODE_CHANGED = "node changed"
    POD_PLACED = "pod placed"
    POD_CHANGED = "pod changed"
    POD_GONE = "pod gone"
    OTHER = "other"


#: What may help a pod that only in-tree filters rejected.
HELPS_FILTERED: Final = frozenset((Event.NODE_ADDED, Event.NODE_CHANGED, Event.POD_GONE))


class Place(Enum):
    """Where a pending pod is."""

    ACTIVE = "active"
    BACKING_OFF = "backing off"
    UNSCHEDULABLE = "unschedulable"
    GATED = "gated"
    IN_FLIGHT = "in flight"


@dataclass(slots=True)
class Waiting:
    """A pending pod, with its history."""

    pod: Json
    since_s: float
    number: int
    place: Place = Place.ACTIVE
    attempts: int = 0
    until_s: float = 0.0
    after_error: bool = False
    refused_by_extender: bool = False
    missed: set[Event] = field(default_factory=set)

    @property
    def uid(self) -> str:
        """The pod's UID."""
        return uid_of(self.pod)

    @property
    def rank(self) -> tuple[int, float, int]:
        """Sorts by priority, then by waiting time."""
        return (-int(spec_of(self.pod).get("priority") or 0), self.since_s, self.number)


class SchedulingQueue:
    """The queue of one profile. ``monotonic`` is its clock in seconds. Bounded by the pods that exist."""

    def __init__(self, monotonic: Callable[[], float], *, first_backoff_s: float = FIRST_BACKOFF_S) -> None:
        self._monotonic = monotonic
        self._first_backoff_s = first_backoff_s
        self._pods: dict[str, Waiting] = {}
        self._places: dict[Place, dict[str, Waiting]] = {place: {} for place in Place}
        self._changed = asyncio.Event()
        self._numbers = 0
        self._flushed_s = monotonic()

    def __len__(self) -> int:
        return len(self._pods)

    def place_of(self, uid: str) -> Place | None:
        """Where the pod is, ``None`` if it is not pending."""
        waiting = self._pods.get(uid)
        return None if waiting is None else waiting.place

    def add(self, pod: Json, *, gated: bool = False) -> None:
        """A pod is new."""
        self._numbers += 1
        waiting = Waiting(pod, self._monotonic(), self._numbers)
        self._pods[waiting.uid] = waiting
        self._put(waiting, Place.GATED if gated else Place.ACTIVE)

    def update(self, pod: Json, *, gated: bool, worth: bool) -> None:
        """A pending pod has changed; ``worth``: the change may make it schedulable."""
        waiting = self._pods.get(uid_of(pod))
        if waiting is None:
            self.add(pod, gated=gated)
            return
        waiting.pod = pod
        if waiting.place is Place.IN_FLIGHT:
            if worth:
                waiting.missed.add(Event.POD_CHANGED)
        elif gated:
            self._put(waiting, Place.GATED)
        elif waiting.place is Place.GATED:
            self._put(waiting, Place.ACTIVE)
        elif waiting.place is Place.UNSCHEDULABLE and worth:
            self._revive(waiting)

    def remove(self, uid: str) -> None:
        """The pod is no longer pending: scheduled, finished or gone."""
        waiting = self._pods.pop(uid, None)
        if waiting is not None:
            self._places[waiting.place].pop(uid, None)

    def happened(self, event: Event) -> None:
        """Something happened; pods that it may help are tried again."""
        for waiting in list(self._places[Place.UNSCHEDULABLE].values()):
            if _helps(waiting, event):
                self._revive(waiting)
        for waiting in self._places[Place.IN_FLIGHT].values():
            waiting.missed.add(event)

    async def take(self) -> Waiting:
        """The next pod to try; ``failed`` or ``remove`` follows."""
        while True:
            self._changed.clear()
            self._flush()
            waiting = self._next()
            if waiting is not None:
                waiting.attempts += 1
                waiting.missed.clear()
                self._put(waiting, Place.IN_FLIGHT)
                return waiting
            with contextlib.suppress(TimeoutError):
                # Not wait_for: Python 3.11's loses a cancellation that comes with the event.
                async with asyncio.timeout(self._idle_s()):
                    await self._changed.wait()

    def failed(self, waiting: Waiting, pod: Json, *, error: bool, refused_by_extender: bool = False) -> None:
        """The attempt failed; ``error``: because of an error, not because the pod fits nowhere."""
        if self._pods.get(waiting.uid) is not waiting:
            return
        now = self._monotonic()
        waiting.pod = pod
        waiting.since_s = now
        waiting.after_error = error
        waiting.refused_by_extender = refused_by_extender
        waiting.until_s = now + min(self._first_backoff_s * 2.0 ** (waiting.attempts - 1), LONGEST_BACKOFF_S)
        helped = any(_helps(waiting, event) for event in waiting.missed)
        self._put(waiting, Place.BACKING_OFF if error or helped else Place.UNSCHEDULABLE)

    def _next(self) -> Waiting | None:
        active = self._places[Place.ACTIVE]
        if active:
            return min(active.values(), key=lambda one: one.rank)
        backing_off = [one for one in self._places[Place.BACKING_OFF].values() if not one.after_error]
        return min(backing_off, key=lambda one: (one.until_s, one.rank), default=None)

    def _flush(self) -> None:
        """Move pods that have waited long enough."""
        now = self._monotonic()
        for waiting in self._due(self._places[Place.BACKING_OFF].values(), now):
            self._put(waiting, Place.ACTIVE)
        if now - self._flushed_s >= FLUSH_EVERY_S:
            self._flushed_s = now
            for waiting in list(self._places[Place.UNSCHEDULABLE].values()):
                if now - waiting.since_s > LAID_ASIDE_MOST_S:
                    self._revive(waiting)

    @staticmethod
    def _due(backing_off: Iterable[Waiting], now: float) -> list[Waiting]:
        return [one for one in backing_off if one.until_s <= now]

    def _idle_s(self) -> float:
        """Time until the next pod may be due."""
        waits = [one.until_s - self._monotonic() for one in self._places[Place.BACKING_OFF].values()]
        return max(0.0, min([*waits, FLUSH_EVERY_S]))

    def _revive(self, waiting: Waiting) -> None:
        due = waiting.until_s <= self._monotonic()
        self._put(waiting, Place.ACTIVE if due else Place.BACKING_OFF)

    def _put(self, waiting: Waiting, place: Place) -> None:
        self._places[waiting.place].pop(waiting.uid, None)
        waiting.place = place
        self._places[place][waiting.uid] = waiting
        self._changed.set()


def _helps(waiting: Waiting, event: Event) -> bool:
    # An extender does not report what would help it, so everything may.
    return waiting.refused_by_extender or event in HELPS_FILTERED or event is Event.POD_CHANGED
