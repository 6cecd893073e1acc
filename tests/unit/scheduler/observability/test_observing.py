"""Leadership, pending pods and their waiting times, and how far the ledger is ahead of the watch."""

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from gpushare.api.objects import ObjectReference, decode_pod
from gpushare.api.request.request import request_of
from gpushare.kube.client.errors import Unreachable
from gpushare.scheduler.framework.binder import Reservations
from gpushare.scheduler.leader.lease import LeaderWatch, Leading
from gpushare.scheduler.observability.cluster_metrics import REASON_STALE, ClusterMetrics
from gpushare.scheduler.observability.metrics import Metrics
from gpushare.scheduler.plugins.explain.pending_pod_events import (
    MAX_EVENTS,
    PATIENCE_S,
    REASON_PENDING,
    REPEAT_S,
    FromDecisions,
    PendingPodEvents,
)
from tests.unit.scheduler.world import World, pod_object


@dataclass
class Waiting:
    key: str
    uid: str
    since: float
    category: str
    asks: str = "8 GiB"
    reason: str = "no single GPU has 8 GiB free on 4,999 nodes"
    suggestion: str = "2 GiB more free on one GPU of node n7"


@dataclass
class Known:
    pods: list[Waiting] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)

    def uids(self) -> list[str]:
        return [one.uid for one in self.pods]

    def category(self, uid: str) -> str:
        return next(one.category for one in self.pods if one.uid == uid)

    def since_s(self, uid: str) -> float:
        return next(one.since for one in self.pods if one.uid == uid)

    def waiting(self, uid: str) -> Any:
        return next(one for one in self.pods if one.uid == uid) if uid not in self.gone else None


class RecordedEvent(NamedTuple):
    regarding: ObjectReference
    reason: str
    note: str
    cause: str
    occurrence: str


class Recorded:
    """Events as they were recorded."""

    def __init__(self) -> None:
        self.recorded: list[RecordedEvent] = []

    def record(
        self,
        regarding: ObjectReference,
        *,
        kind: str,
        reason: str,
        action: str,
        note: str,
        cause: str = "",
        occurrence: str = "each",
    ) -> None:
        self.recorded.append(RecordedEvent(regarding, reason, note, cause, occurrence))


class Clock:
    """Moves only when a test moves it; sleeps end immediately, the third one with the task."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    def time_ns(self) -> int:
        return int(self.now_s * 1e9)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if len(self.slept) == 3:
            raise asyncio.CancelledError
        await asyncio.sleep(0)


def pending_events(pods: list[Waiting], *, leads: bool = True) -> tuple[PendingPodEvents, Recorded, Clock]:
    events, clock = Recorded(), Clock()
    return PendingPodEvents(Known(pods), events, clock, SimpleNamespace(leads=leads)), events, clock


def pending_notes(events: Recorded) -> list[tuple[str, str]]:
    return [(one.regarding.name, one.note) for one in events.recorded if one.reason == REASON_PENDING]


async def test_a_pending_pod_gets_one_event_with_reason_and_suggestion_and_another_on_change() -> None:
    pod = Waiting("default/a", "u1", 980.0, "memory")
    watched, events, _ = pending_events([pod])
    await watched.look()
    assert pending_notes(events) == [
        (
            "a",
            "pending, requests 8 GiB: no single GPU has 8 GiB free on 4,999 nodes. What would help: 2 GiB more free on one GPU of "
            "node n7",
        )
    ]
    pod.reason = "no single GPU has 8 GiB free on 4,998 nodes"
    await watched.look()
    assert len(pending_notes(events)) == 1, "only figures have changed"
    pod.category, pod.reason, pod.suggestion = "quota", "quota team-a is used up", ""
    await watched.look()
    await watched.look()
    assert [note for _, note in pending_notes(events)][1:] == [
        "pending, requests 8 GiB: quota team-a is used up"
    ]
    # Each may have been reported by the previous leader.
    assert [one.occurrence for one in events.recorded] == ["lasting", "lasting"]


async def test_a_pod_that_stays_pending_is_reported_again_before_its_event_expires_with_the_current_text() -> (
    None
):
    pod = Waiting("default/a", "u1", 980.0, "memory")
    watched, events, clock = pending_events([pod])
    await watched.look()
    clock.now_s += REPEAT_S - 1.0
    await watched.look()
    assert len(events.recorded) == 1
    clock.now_s += 1.0
    await watched.look()
    await watched.look()
    first, again = events.recorded
    assert again == first, "the same words count on the event that is there"
    pod.suggestion = "1 GiB more free on one GPU of node n9"
    clock.now_s += REPEAT_S - 1.0
    await watched.look()
    assert len(events.recorded) == 2
    clock.now_s += 1.0
    await watched.look()
    assert events.recorded[2].note.endswith("What would help: 1 GiB more free on one GPU of node n9")
    assert events.recorded[2].cause not in {"memory", first.cause}, "a written event keeps its text"
    clock.now_s += REPEAT_S
    await watched.look()
    assert events.recorded[3] == events.recorded[2]
    clock.now_s += REPEAT_S
    pod.category = "binding"
    await watched.look()
    assert len(events.recorded) == 4, "it has found a place"


async def test_pods_with_gates_are_reported_and_do_not_count_as_the_longest_wait() -> None:
    gated = Waiting("default/gated", "u1", 100.0, "gates", reason="gates: example.com/later", suggestion="")
    watched, events, _ = pending_events([gated, Waiting("default/a", "u2", 940.0, "memory")])
    await watched.look()
    assert (watched.by_reason, watched.longest_pending_s()) == ({"gates": 1, "memory": 1}, 60.0)
    assert [name for name, _ in pending_notes(events)] == ["gated", "a"]
    only, *_ = pending_events([gated])
    await only.look()
    assert only.longest_pending_s() == 0.0


async def test_a_young_pod_and_one_of_another_leader_are_counted_and_not_reported() -> None:
    young, old = Waiting("default/a", "u1", 1_000.0, "memory"), Waiting("default/b", "u2", 900.0, "quota")
    watched, events, clock = pending_events([young])
    await watched.look()
    assert (pending_notes(events), watched.by_reason) == ([], {"memory": 1})
    clock.now_s += PATIENCE_S
    await watched.look()
    assert len(pending_notes(events)) == 1
    other, silent, _ = pending_events([young, old], leads=False)
    await other.look()
    assert (pending_notes(silent), other.by_reason, other.longest_pending_s()) == (
        [],
        {"memory": 1, "quota": 1},
        100.0,
    )


async def test_a_reason_without_pending_pods_is_zero() -> None:
    waiting = [Waiting("default/a", "u1", 900.0, "memory")]
    watched, _, _ = pending_events(waiting)
    await watched.look()
    waiting.clear()
    await watched.look()
    assert (watched.by_reason, watched.longest_pending_s()) == ({"memory": 0}, 0.0)


async def test_uninteresting_kinds_and_pods_gone_meanwhile_are_skipped() -> None:
    pods = [Waiting(f"default/{kind}", kind, 1.0, kind) for kind in ("unasked", "scheduler", "binding", "")]
    gone = Waiting("default/gone", "gone", 2.0, "memory")
    events, clock = Recorded(), Clock()
    watched = PendingPodEvents(Known([*pods, gone], {"gone"}), events, clock, SimpleNamespace(leads=True))
    await watched.look()
    assert pending_notes(events) == []
    assert watched.by_reason == {"unasked": 1, "scheduler": 1, "binding": 1, "memory": 1}


async def test_the_record_of_decisions_is_queried(world: World) -> None:
    known = FromDecisions(world.decisions)
    world.create("a", 3)
    world.see("a")
    assert list(known.uids()) == ["uid-a"]
    assert known.category("uid-a") == "unasked"
    assert known.since_s("uid-a") == 0.0
    found = known.waiting("uid-a")
    assert found is not None
    assert found.key == "default/a"
    assert (known.category("none"), known.waiting("none")) == ("", None)


async def test_of_very_many_pods_some_are_reported_at_each_look() -> None:
    watched, events, _ = pending_events(
        [Waiting(f"default/p{n}", f"u{n}", 0.0, "memory") for n in range(120)]
    )
    counts = []
    for _ in range(4):
        await watched.look()
        counts.append(len(pending_notes(events)))
    assert counts == [MAX_EVENTS, 2 * MAX_EVENTS, 120, 120]


async def test_it_looks_again_and_again() -> None:
    watched, events, clock = pending_events([Waiting("default/a", "u1", 0.0, "memory")])
    await asyncio.gather(asyncio.create_task(watched.run()), return_exceptions=True)
    assert (len(clock.slept), len(pending_notes(events))) == (3, 1)


class Leases:
    def __init__(self, *answers: str | Unreachable) -> None:
        self.answers = list(answers)

    async def lease_holder(self, namespace: str, name: str) -> str:
        assert (namespace, name) == ("kube-system", "ack-co-scheduler")
        answer = self.answers.pop(0)
        if isinstance(answer, Unreachable):
            raise answer
        return answer


async def test_the_lease_is_read_now_and_then_and_an_unreadable_one_means_not_leading() -> None:
    seen: list[bool] = []

    class Looking(Clock):
        async def sleep(self, seconds: float) -> None:
            seen.append(leading.leads)
            await super().sleep(seconds)

    leases = Leases("pod-a_4711", Unreachable("api", "gone", sent=None), "pod-ab_1")
    leading = LeaderWatch(Leading(leases, ("kube-system", "ack-co-scheduler"), "pod-a"), Looking())
    assert not leading.leads
    await asyncio.gather(asyncio.create_task(leading.run()), return_exceptions=True)
    assert seen == [True, False, False]


def scraped(metrics: Metrics) -> dict[str, float]:
    return {
        sample.name + "".join(sample.labels.values()): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


def watch(**figures: Any) -> Any:
    return SimpleNamespace(figures=SimpleNamespace(**figures))


async def test_the_figures_are_in_a_scrape() -> None:
    clock, events = Clock(), Recorded()
    metrics, reservations = Metrics(), Reservations(15.0)
    leading = LeaderWatch(Leading(Leases(), None), clock)
    waiting = PendingPodEvents(Known([Waiting("default/a", "u", 940.0, "memory")]), events, clock, leading)
    await waiting.look()
    observing = ClusterMetrics(metrics, events, reservations, leading, clock)
    observing.export(
        lambda: {
            "pods": watch(synced=True, last_error="", objects=7, last_received_s=clock.now_s - 2.0),
            "nodes": watch(synced=True, last_error="gone", objects=3, last_received_s=clock.now_s - 40.0),
            "elasticquotatrees": watch(synced=False, last_error="", objects=0, last_received_s=None),
        },
    )
    waiting.export(metrics.watch, metrics.watch_by)
    assert scraped(metrics)["gpushare_scheduler_oldest_reservation_age_seconds"] == 0.0
    reservations.add("u0", "default/p0", clock.now_s)
    assert scraped(metrics)["gpushare_scheduler_oldest_reservation_age_seconds"] == 0.0
    reservations.end("u0")
    reservations.add("u1", "default/p1", 996.0)
    found = scraped(metrics)
    assert found["gpushare_scheduler_is_leader"] == 1.0
    assert found["gpushare_scheduler_pending_podsmemory"] == 1.0
    assert found["gpushare_scheduler_longest_pending_seconds"] == 60.0
    assert found["gpushare_scheduler_oldest_reservation_age_seconds"] == 4.0
    assert [
        found[f"gpushare_scheduler_watch_failing{kind}"] for kind in ("pods", "nodes", "elasticquotatrees")
    ] == [
        0,
        1,
        1,
    ]
    assert found["gpushare_scheduler_watched_objectspods"] == 7.0
    assert [
        found[f"gpushare_scheduler_watch_last_event_age_seconds{kind}"]
        for kind in ("pods", "nodes", "elasticquotatrees")
    ] == [2.0, 40.0, float("inf")]
    observing.confirmed("u1")
    observing.confirmed("never reserved")
    found = scraped(metrics)
    assert found["gpushare_scheduler_bind_confirmation_duration_seconds_sum"] == 4.0
    assert found["gpushare_scheduler_bind_confirmation_duration_seconds_count"] == 1.0
    assert not reservations.deadlines


async def test_a_reservation_whose_binding_never_comes_is_one_event_on_the_pod(world: World) -> None:
    metrics, events = Metrics(), Recorded()
    leading = LeaderWatch(Leading(Leases(), None), world.clock)
    observing = ClusterMetrics(metrics, events, world.reservations, leading, world.clock)
    world.binder.reservation_expired.subscribe(observing.stale)
    world.api.create(pod_object("a", 3))
    for _ in range(2):
        world.ledger.reserve("uid-a", "default/a", request_of(decode_pod(pod_object("a", 3))), "n1")  # type: ignore[arg-type]
        world.reservations.add("uid-a", "default/a", 0.0)
        await world.binder.settle("uid-a", "default/a")
    first, second = events.recorded
    assert (first.reason, first.regarding.name, first.cause) == (REASON_STALE, "a", second.cause)
    assert "no Binding to node n1 was seen" in first.note
    assert scraped(metrics)["gpushare_scheduler_expired_reservations_total"] == 2.0
