"""Reports pending pods: an event on the pod whenever the reason changes, and Prometheus metrics.

kube-scheduler's own event (``FailedScheduling``) lists our reasons node by node and is cut after 1,024 bytes. With thousands of nodes
whose figures differ, it says neither why the pod is pending nor what would help. Our event says both in one line. Only the leader
records it, for a limited number of pods at a time, and only once a pod has been pending longer than most pods are. It is recorded again,
with the current text, before the API server drops it.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from gpushare.api.objects import ObjectReference
from gpushare.kube.clock import Clock
from gpushare.kube.event_recorder import Recorder
from gpushare.scheduler.leader.lease import LeaderWatch

if TYPE_CHECKING:
    from gpushare.scheduler.plugins.explain.decision_log import DecisionLog, PendingPod

GaugeFn = Callable[[str, str, Callable[[], float]], None]
GaugeByFn = Callable[[str, str, str, Callable[[], Mapping[str, float]]], None]

REASON_PENDING: Final = "GPUSchedulingPending"
#: Seconds between two looks.
EVERY_S: Final = 5.0
#: Pods younger than this, in seconds, are skipped: most are bound soon.
PATIENCE_S: Final = 10.0
#: Seconds after which an unchanged event is recorded again: the API server drops an event one hour after its last write.
REPEAT_S: Final = 45 * 60.0
#: Most events recorded in one look; the remaining pods follow in the next look.
MAX_EVENTS: Final = 50


#: Pods that are examined before other tasks of the event loop run.
_BATCH: Final = 100
#: Categories without an event: the first cycle is still to come, or it has succeeded.
_NOT_REPORTED: Final = frozenset({"unasked", "scheduler", "binding"})
#: Category of pods with scheduling gates. Gates are set on purpose, so these pods are not reported as a problem.
_GATES: Final = "gates"


class PendingPodSource(Protocol):
    """Source of the pending pods."""

    def uids(self) -> Collection[str]:
        """UIDs of all pending pods."""

    def category(self, uid: str) -> str:
        """Category of the reason; empty if the pod is no longer pending."""

    def since_s(self, uid: str) -> float:
        """When the pod was created, in seconds since 1970."""

    def waiting(self, uid: str) -> "PendingPod | None":
        """The pod with its reason; ``None`` if it is no longer pending."""


class FromDecisions:
    """``PendingPodSource`` from the record of decisions. Imports late, to keep startup short."""

    def __init__(self, decisions: "DecisionLog") -> None:
        self._decisions = decisions

    def uids(self) -> Collection[str]:
        """UIDs of all pending pods."""
        return self._decisions.view.waiting.keys()

    def category(self, uid: str) -> str:
        """Category of the reason; empty if the pod is no longer pending."""
        from gpushare.scheduler.plugins.explain.pending_pods import category

        return category(self._decisions, uid)

    def since_s(self, uid: str) -> float:
        """When the pod was created, in seconds since 1970."""
        from gpushare.scheduler.plugins.explain.pending_pods import epoch_s

        return epoch_s(self._decisions.view.waiting[uid].created)

    def waiting(self, uid: str) -> "PendingPod | None":
        """The pod with its reason; ``None`` if it is no longer pending."""
        from gpushare.scheduler.plugins.explain.pending_pods import pending_pod

        return pending_pod(self._decisions, uid)


class _Reported(NamedTuple):
    """What was last reported for a pod: category, time (monotonic), text, and the ``cause`` by which the recorder distinguishes events."""

    since_s: float
    category: str = ""
    at_s: float = 0.0
    note: str = ""
    cause: str = ""


class PendingPodEvents:
    """Records the events and exports the metrics. ``leading``: whether this scheduler leads; only the leader records events."""

    def __init__(
        self, source: PendingPodSource, events: Recorder, clock: Clock, leading: LeaderWatch
    ) -> None:
        self._source = source
        self._events = events
        self._clock = clock
        self._leading = leading
        self._reported: dict[str, _Reported] = {}
        self.by_reason: Mapping[str, int] = {}
        """Number of pending pods by category, as of the last look. A category that was seen once stays, with 0."""
        self.oldest_s: float = 0.0
        """Creation time of the oldest pending pod, in seconds since 1970; 0 if none is pending. Pods with scheduling gates do not count."""

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
            self.longest_pending_s,
        )

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            await self._clock.sleep(EVERY_S)

    async def look(self) -> None:
        """Count pending pods and record new reasons. Yields to other tasks in between."""
        uids = list(self._source.uids())
        self._reported = {uid: reported for uid in uids if (reported := self._reported.get(uid)) is not None}
        counts = Counter(dict.fromkeys(self.by_reason, 0))
        created_before_s = self._clock.time_ns() / 1e9 - PATIENCE_S
        oldest_s, remaining = 0.0, MAX_EVENTS if self._leading.leads else 0
        for number, uid in enumerate(uids):
            if number % _BATCH == _BATCH - 1:
                await asyncio.sleep(0)
            category = self._source.category(uid)
            if not category:
                continue
            counts[category] += 1
            reported = self._reported.get(uid)
            if reported is None:
                reported = self._reported[uid] = _Reported(self._source.since_s(uid))
            if category != _GATES:
                oldest_s = min(oldest_s or reported.since_s, reported.since_s)
            changed = category != reported.category or self._clock.monotonic() - reported.at_s >= REPEAT_S
            if (
                remaining
                and changed
                and category not in _NOT_REPORTED
                and reported.since_s <= created_before_s
            ):
                remaining -= self._report(uid, category, reported)
                # A suggestion may have to examine every node.
                await asyncio.sleep(0)
        self.by_reason, self.oldest_s = counts, oldest_s

    def longest_pending_s(self) -> float:
        """Age of the oldest pending pod, in seconds."""
        return max(0.0, self._clock.time_ns() / 1e9 - self.oldest_s) if self.oldest_s else 0.0

    def _report(self, uid: str, category: str, previous: _Reported) -> bool:
        reported = previous._replace(category=category, at_s=self._clock.monotonic())
        pod = self._source.waiting(uid)
        if pod is None:
            self._reported[uid] = reported
            return False
        namespace, _, name = pod.key.partition("/")
        reason_text = f"pending, requests {pod.asks}: {pod.reason}" if pod.asks else f"pending: {pod.reason}"
        note = f"{reason_text}. What would help: {pod.suggestion}" if pod.suggestion else reason_text
        if category != previous.category:
            # The figures in the text change with every pod that is created or deleted; the category does not.
            cause = category
        elif note == previous.note:
            cause = previous.cause
        else:
            # The text of a written event cannot change: the new text is a separate event, and the old one expires within the hour.
            cause = f"{category}: {note}"
        self._reported[uid] = reported._replace(note=note, cause=cause)
        self._events.record(
            ObjectReference("Pod", name, namespace, uid),
            kind="Normal" if category == _GATES else "Warning",
            reason=REASON_PENDING,
            action="Scheduling",
            note=note,
            cause=cause,
            # The previous leader may have recorded the same event; if a reason recurs, its event's count goes up.
            occurrence="lasting",
        )
        return True
