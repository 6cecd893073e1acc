"""Tells people of pods that wait: an event on the pod at each change of the reason, and figures for Prometheus.

kube-scheduler's own event (``FailedScheduling``) counts our reasons node by node, and is cut after 1,024 bytes: with thousands of
nodes that name different figures it says neither why nor what would help. This one says both in one line. It is told by
the scheduler that leads, after a while in which most pods find their place, for some pods a turn; and again before an API
server forgets it, in today's words.
"""

import asyncio
import importlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from gpushare.api.objects import ObjectReference
from gpushare.kube.clock import Clock
from gpushare.kube.event_recorder import Recorder

if TYPE_CHECKING:
    from gpushare.scheduler.plugins.explain.decision_log import DecisionLog, Waiting

GaugeFn = Callable[[str, str, Callable[[], float]], None]
GaugeByFn = Callable[[str, str, str, Callable[[], Mapping[str, float]]], None]

REASON_WAITING: Final = "GPUSchedulingPending"
#: Between two looks.
EVERY_S: Final = 5.0
#: Pods younger than this are passed over: mostly they are placed meanwhile.
PATIENCE_S: Final = 10.0
#: An API server keeps an event for an hour since it was written last: what lasts longer is told again before that.
AGAIN_S: Final = 45 * 60.0
#: Events that are noted at one look; those pods that are left are next.
MOST_TOLD: Final = 50


#: Pods that are looked at without a pause for others.
_AT_ONCE: Final = 100
#: Kinds that are no news: the first cycle is still to come, or it has succeeded.
_NO_NEWS: Final = frozenset({"unasked", "scheduler", "binding"})
#: Somebody has set the gates on purpose: no fault, and nobody is kept waiting.
_GATES: Final = "gates"


class Known(Protocol):
    """Who knows the pods that wait."""

    def uids(self) -> Collection[str]:
        """Of all of them."""

    def category(self, uid: str) -> str:
        """What kind of reason, one of a few words; empty where it waits no longer."""

    def since_s(self, uid: str) -> float:
        """When it was made, in seconds since 1970."""

    def waiting(self, uid: str) -> "Waiting | None":
        """All that is known of it; ``None`` where it waits no longer."""


class Leads(Protocol):
    """Whether this scheduler leads (``leading.Leading``)."""

    @property
    def leads(self) -> bool:
        """As far as is known."""


class FromDecisions:
    """``Known`` from the record of decisions."""

    def __init__(self, decisions: "DecisionLog") -> None:
        self._decisions = decisions
        # Not by the start, which is timed.
        self._asked: Any = None

    @property
    def _waiting(self) -> Any:
        if self._asked is None:
            self._asked = importlib.import_module("gpushare.scheduler.plugins.explain.pending_pods")
        return self._asked

    def uids(self) -> Collection[str]:
        """Of all pods that wait."""
        return self._decisions.view.waiting.keys()

    def category(self, uid: str) -> str:
        """What kind of reason; empty where it waits no longer."""
        found: str = self._waiting.category(self._decisions, uid)
        return found

    def since_s(self, uid: str) -> float:
        """When it was made, in seconds since 1970."""
        since_s: float = self._waiting.epoch_s(self._decisions.view.waiting[uid].created)
        return since_s

    def waiting(self, uid: str) -> "Waiting | None":
        """All that is known of it; ``None`` where it waits no longer."""
        found: Waiting | None = self._waiting.waiting(self._decisions, uid)
        return found


class _Told(NamedTuple):
    """What is told of a pod: the kind of reason, when (monotonic), the text, and as news of which cause."""

    since_s: float
    category: str = ""
    at_s: float = 0.0
    note: str = ""
    cause: str = ""


class PendingPodEvents:
    """``leads``: whether this scheduler is the one that tells."""

    def __init__(self, known: Known, events: Recorder, clock: Clock, leads: Leads) -> None:
        self._known = known
        self._events = events
        self._clock = clock
        self._leads = leads
        self._told: dict[str, _Told] = {}
        self.by_reason: Mapping[str, int] = {}
        """How many wait for each kind of reason, as of the last look. A kind that was seen once stays, with 0."""
        self.oldest_s: float = 0.0
        """When the pod was made that has waited longest, in seconds since 1970; 0 where none waits. Pods with gates do not count."""

    def export(self, gauge: GaugeFn, gauge_by: GaugeByFn) -> None:
        """Register the metrics."""
        gauge_by(
            "gpushare_scheduler_pending_pods",
            "Pods without a node that request a GPU, by the kind of reason.",
            "reason",
            lambda: self.by_reason,
        )
        gauge(
            "gpushare_scheduler_longest_pending_seconds",
            "Age of the oldest pending pod that requests a GPU, those with scheduling gates left out; 0 where none is pending.",
            self.waits_s,
        )

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            await self._clock.sleep(EVERY_S)

    async def look(self) -> None:
        """Count who waits, and tell what is new; others get their turn meanwhile."""
        uids = list(self._known.uids())
        self._told = {uid: told for uid in uids if (told := self._told.get(uid)) is not None}
        counts = Counter(dict.fromkeys(self.by_reason, 0))
        before_s = self._clock.time_ns() / 1e9 - PATIENCE_S
        oldest_s, left = 0.0, MOST_TOLD if self._leads.leads else 0
        for number, uid in enumerate(uids):
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
            category = self._known.category(uid)
            if not category:
                continue
            counts[category] += 1
            told = self._told.get(uid)
            if told is None:
                told = self._told[uid] = _Told(self._known.since_s(uid))
            if category != _GATES:
                oldest_s = min(oldest_s or told.since_s, told.since_s)
            new = category != told.category or self._clock.monotonic() - told.at_s >= AGAIN_S
            if left and new and category not in _NO_NEWS and told.since_s <= before_s:
                left -= self._tell(uid, category, told)
                # To say what would help may take a look at every node.
                await asyncio.sleep(0)
        self.by_reason, self.oldest_s = counts, oldest_s

    def waits_s(self) -> float:
        """How long the pod has waited that waits longest, in seconds."""
        return max(0.0, self._clock.time_ns() / 1e9 - self.oldest_s) if self.oldest_s else 0.0

    def _tell(self, uid: str, category: str, before: _Told) -> bool:
        told = before._replace(category=category, at_s=self._clock.monotonic())
        one = self._known.waiting(uid)
        if one is None:
            self._told[uid] = told
            return False
        namespace, _, name = one.key.partition("/")
        why = f"waits for {one.asks}: {one.reason}" if one.asks else f"waits: {one.reason}"
        note = f"{why}. What would help: {one.suggestion}" if one.suggestion else why
        if category != before.category:
            # The figures in the text change with every pod that comes and goes; the kind of reason does not.
            cause = category
        elif note == before.note:
            cause = before.cause
        else:
            # A written event keeps its text: today's is an event of its own, and the old one goes within the hour.
            cause = f"{category}: {note}"
        self._told[uid] = told._replace(note=note, cause=cause)
        self._events.record(
            ObjectReference("Pod", name, namespace, uid),
            kind="Normal" if category == _GATES else "Warning",
            reason=REASON_WAITING,
            action="Scheduling",
            note=note,
            cause=cause,
            # Whoever led before may have told it; and what a pod waits for once more counts on.
            telling="standing",
        )
        return True
