"""What the scheduler says of itself beside its verbs: who leads, who waits and why, how far its ledger is behind."""

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from gpushare.api.objects import ObjectReference
from gpushare.kube.clock import Clock
from gpushare.kube.event_recorder import Recorder
from gpushare.kube.watch.informer import InformerFigures
from gpushare.scheduler.framework.binder import Reservations
from gpushare.scheduler.leader.lease import LeaderWatch
from gpushare.scheduler.observability.metrics import Metrics
from gpushare.scheduler.observability.pending_pod_events import PendingPodEvents

REASON_STALE: Final = "GPUReservationExpired"


class Watch(Protocol):
    """An informer."""

    @property
    def figures(self) -> InformerFigures:
        """How it fares."""


class ClusterMetrics:
    """Puts figures into ``metrics`` and tells of reservations that came to nothing."""

    def __init__(
        self,
        metrics: Metrics,
        events: Recorder,
        reservations: Reservations,
        leading: LeaderWatch,
        clock: Clock,
    ) -> None:
        self._metrics = metrics
        self._events = events
        self._reservations = reservations
        self._leading = leading
        self._clock = clock

    def confirmed(self, uid: str) -> None:
        """The watch has shown the pod with the node that a share was reserved on."""
        deadline = self._reservations.deadlines.get(uid)
        if deadline is not None:
            self._metrics.confirmation_seconds.observe(self._since_s(deadline[0]))
        self._reservations.end(uid)

    def stale(self, uid: str, key: str, node: str) -> None:
        """A share was reserved for a Binding that never came."""
        self._metrics.stale.inc()
        namespace, _, name = key.partition("/")
        self._events.record(
            ObjectReference("Pod", name, namespace, uid),
            kind="Warning",
            reason=REASON_STALE,
            action="Binding",
            note=f"no Binding to node {node} was seen {self._reservations.ttl_s:g} s after its share was reserved: the share is "
            "free again, and the pod is placed anew. If that goes on, look at the log of the scheduler and at the API server",
            cause="never came",
        )

    def export(self, watches: Callable[[], Mapping[str, Watch]], news: PendingPodEvents) -> None:
        """Have the figures in every scrape; ``watches`` by what they are of, asked for each time: some come and go."""
        metrics = self._metrics
        metrics.watch(
            "gpushare_scheduler_leading",
            "1 while the kube-scheduler beside this extender leads, or is the only one.",
            lambda: float(self._leading.leads),
        )
        metrics.watch_by(
            "gpushare_scheduler_pods_waiting",
            "Pods that ask for a GPU and wait, by what kind of reason, as this scheduler has decided.",
            "reason",
            lambda: news.by_reason,
        )
        metrics.watch(
            "gpushare_scheduler_longest_wait_seconds",
            "How long the pod has waited that waits longest, those with scheduling gates left out; 0 where none waits.",
            news.waits_s,
        )
        metrics.watch(
            "gpushare_scheduler_oldest_reservation_seconds",
            "Age of the oldest share whose Binding was not seen yet: how far the ledger is ahead of the watch.",
            self._oldest_s,
        )
        metrics.watch_by(
            "gpushare_scheduler_watch_trouble",
            "1 while what is watched cannot be read or followed.",
            "kind",
            _each(watches, lambda one: float(not one.synced or bool(one.last_error))),
        )
        metrics.watch_by(
            "gpushare_scheduler_watched_objects",
            "Objects that are known by what is watched.",
            "kind",
            _each(watches, lambda one: one.objects),
        )
        metrics.watch_by(
            "gpushare_scheduler_watch_silence_seconds",
            "Time since what is watched was last heard of; +Inf before.",
            "kind",
            _each(watches, self._silence_s),
        )

    def _silence_s(self, figures: InformerFigures) -> float:
        heard_s = figures.last_heard_s
        return float("inf") if heard_s is None else self._clock.monotonic() - heard_s

    def _oldest_s(self) -> float:
        first = next(iter(self._reservations.deadlines.values()), None)
        return 0.0 if first is None else self._since_s(first[0])

    def _since_s(self, deadline_s: float) -> float:
        return max(0.0, self._clock.monotonic() - (deadline_s - self._reservations.ttl_s))


def _each(
    watches: Callable[[], Mapping[str, Watch]], read: Callable[[InformerFigures], float]
) -> Callable[[], dict[str, float]]:
    return lambda: {kind: read(watch.figures) for kind, watch in watches().items()}
