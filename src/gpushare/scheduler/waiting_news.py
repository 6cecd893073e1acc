"""Tells people of pods that wait: an event on the pod once per change of the reason, and figures for Prometheus.

kube-scheduler's own event (``FailedScheduling``) counts our reasons node by node, and is cut after 1,024 bytes: with thousands of
nodes that name different figures it says neither why nor what would help. This one says both in one line. It is told by
the scheduler that leads, after a while in which most pods find their place, for some pods a turn.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from gpushare.kube.clock import Clock
from gpushare.kube.events import Recorder
from gpushare.model.objects import ObjectReference

REASON_WAITING: Final = "GPUShareWaiting"
#: Between two looks.
EVERY_S: Final = 5.0
#: Pods younger than this are passed over: mostly they are placed meanwhile.
PATIENCE_S: Final = 10.0
#: Events that are noted at one look; those pods that are left are next.
MOST_TOLD: Final = 50


class Waits(Protocol):
    """A pod that waits (``decisions.Waiting``). ``category`` is one of a few words, ``since`` is in seconds since 1970."""

    @property
    def key(self) -> str:
        """``namespace/name``."""

    @property
    def uid(self) -> str:
        """Its UID."""

    @property
    def since(self) -> float:
        """When it was made."""

    @property
    def asks(self) -> str:
        """What it asks for, as people write it."""

    @property
    def category(self) -> str:
        """What kind of reason."""

    @property
    def reason(self) -> str:
        """Why it waits."""

    @property
    def remedy(self) -> str:
        """What would let it fit."""


class TellsWaiting(Protocol):
    """Who knows the pods that wait (``decisions.Decisions``)."""

    def waiting(self) -> Sequence[Waits]:
        """All of them."""


class WaitingNews:
    """``leads``: whether this scheduler is the one that tells."""

    def __init__(self, decisions: TellsWaiting, events: Recorder, clock: Clock, leads: "Leads") -> None:
        self._decisions = decisions
        self._events = events
        self._clock = clock
        self._leads = leads
        self._told: dict[str, str] = {}
        self.by_reason: Mapping[str, int] = {}
        """How many wait for each kind of reason, as of the last look. A kind that was seen once stays, with 0."""
        self.oldest_s: float = 0.0
        """When the pod was made that has waited longest, in seconds since 1970; 0 where none waits."""

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self.look()
            await self._clock.sleep(EVERY_S)

    def look(self) -> None:
        """Count who waits, and tell what is new."""
        waiting = self._decisions.waiting()
        self.by_reason = {**dict.fromkeys(self.by_reason, 0), **Counter(one.category for one in waiting)}
        self.oldest_s = min((one.since for one in waiting), default=0.0)
        if not self._leads.leads:
            self._told.clear()
            return
        before_s = self._clock.time_ns() / 1e9 - PATIENCE_S
        uids = {one.uid for one in waiting}
        self._told = {uid: category for uid, category in self._told.items() if uid in uids}
        left = MOST_TOLD
        for one in waiting:
            if left and one.since <= before_s and self._told.get(one.uid) != one.category:
                self._told[one.uid] = one.category
                self._tell(one)
                left -= 1

    def waits_s(self) -> float:
        """How long the pod has waited that waits longest, in seconds."""
        return max(0.0, self._clock.time_ns() / 1e9 - self.oldest_s) if self.oldest_s else 0.0

    def _tell(self, one: Waits) -> None:
        namespace, _, name = one.key.partition("/")
        why = f"waits for {one.asks}: {one.reason}"
        self._events.record(
            ObjectReference("Pod", name, namespace, one.uid),
            kind="Warning",
            reason=REASON_WAITING,
            action="Scheduling",
            note=f"{why}. What would help: {one.remedy}" if one.remedy else why,
            # The figures in the text change with every pod that comes and goes; the kind of reason does not.
            cause=one.category,
        )


class Leads(Protocol):
    """Whether this scheduler leads (``leading.Leading``)."""

    @property
    def leads(self) -> bool:
        """As far as is known."""
