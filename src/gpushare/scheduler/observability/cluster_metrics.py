"""The scheduler's metrics about leadership, reservations and watches."""

from collections.abc import Callable, Mapping
from typing import Final

from gpushare.api.objects import ObjectReference
from gpushare.kube.clock import Clock
from gpushare.kube.event_recorder import Recorder
from gpushare.kube.watch.informer import InformerFigures
from gpushare.scheduler.framework.binder import Reservations
from gpushare.scheduler.framework.interface import Watch
from gpushare.scheduler.leader.lease import LeaderWatch
from gpushare.scheduler.observability.metrics import Metrics

REASON_STALE: Final = "GPUReservationExpired"


class ClusterMetrics:
    """Exports metrics, and records events of expired reservations."""

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
        """The watch shows that the pod with a reservation is bound."""
        deadline = self._reservations.deadlines.get(uid)
        if deadline is not None:
            self._metrics.bind_confirmation_seconds.observe(self._since_s(deadline[0]))
        self._reservations.end(uid)

    def stale(self, uid: str, key: str, node: str) -> None:
        """A reservation expired without a Binding."""
        self._metrics.expired_reservations.inc()
        namespace, _, name = key.partition("/")
        self._events.record(
            ObjectReference("Pod", name, namespace, uid),
            kind="Warning",
            reason=REASON_STALE,
            action="Binding",
            note=f"no Binding to node {node} was seen {self._reservations.ttl_s:g} s after its share was reserved: the share "
            "was released and the pod will be rescheduled. If this recurs, check the scheduler's log and the API server",
            cause="never came",
        )

    def export(self, watches: Callable[[], Mapping[str, Watch]]) -> None:
        """Register the metrics. ``watches`` (by kind) is called at each scrape, as watches may be added and removed."""
        metrics = self._metrics
        metrics.watch(
            "gpushare_scheduler_is_leader",
            "1 while the kube-scheduler beside this extender is the leader, or the only one.",
            lambda: float(self._leading.leads),
        )
        metrics.watch(
            "gpushare_scheduler_oldest_reservation_age_seconds",
            "Age of the oldest reservation whose Binding was not observed yet: how far the ledger is ahead of the watch.",
            self._oldest_s,
        )
        metrics.watch_by(
            "gpushare_scheduler_watch_failing",
            "1 while these objects cannot be listed or watched.",
            "kind",
            _each(watches, lambda figures: float(not figures.synced or bool(figures.last_error))),
        )
        metrics.watch_by(
            "gpushare_scheduler_watched_objects",
            "Objects known from the watch.",
            "kind",
            _each(watches, lambda figures: figures.objects),
        )
        metrics.watch_by(
            "gpushare_scheduler_watch_last_event_age_seconds",
            "Seconds since the last event of the watch; +Inf before the first.",
            "kind",
            _each(watches, self._event_age_s),
        )

    def _event_age_s(self, figures: InformerFigures) -> float:
        received_s = figures.last_received_s
        return float("inf") if received_s is None else self._clock.monotonic() - received_s

    def _oldest_s(self) -> float:
        first = next(iter(self._reservations.deadlines.values()), None)
        return 0.0 if first is None else self._since_s(first[0])

    def _since_s(self, deadline_s: float) -> float:
        return max(0.0, self._clock.monotonic() - (deadline_s - self._reservations.ttl_s))


def _each(
    watches: Callable[[], Mapping[str, Watch]], read: Callable[[InformerFigures], float]
) -> Callable[[], dict[str, float]]:
    return lambda: {kind: read(watch.figures) for kind, watch in watches().items()}
