"""Events: recorded immediately, written in the background, counted as series, bounded in every way."""

import asyncio
from collections import deque
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from gpushare.api.objects import ObjectReference, node_reference
from gpushare.kube.backoff import Backoff
from gpushare.kube.client.errors import ApiError, KubeError, Unreachable
from gpushare.kube.event_recorder import (
    RECENTLY_RECORDED_S,
    RECURRENCES,
    SERIES_END_S,
    EventRecorder,
    Occurrence,
)
from tests.unit.kube.scripted import ScriptedClock, until

POD = ObjectReference("Pod", "a", "ml", "uid-a")
PATH = "/apis/events.k8s.io/v1/namespaces/ml/events"


class FakeSession:
    """Replaces a ``Session``: records what is written, and fails as scripted (``None``: succeeds)."""

    def __init__(self, *faults: KubeError | None) -> None:
        self.faults = deque(faults)
        self.requests: list[tuple[str, str, Any]] = []

    async def request(self, method: str, path: str, *, body: bytes, **options: object) -> bytes:
        await asyncio.sleep(0)
        self.requests.append((method, path, msgspec.json.decode(body)))
        if self.faults and (fault := self.faults.popleft()) is not None:
            raise fault
        return b"{}"


def refusal(status: int) -> ApiError:
    return ApiError(status, "Reason", "message", PATH)


class Recording:
    """A recorder with its session and its clock."""

    def __init__(self, *faults: KubeError | None, **limits: int) -> None:
        self.session, self.clock = FakeSession(*faults), ScriptedClock()
        self.recorder = EventRecorder(
            self.session,  # type: ignore[arg-type]
            controller="gpushare.dev/scheduler",
            instance="extender-0",
            clock=self.clock,
            backoff=Backoff(chance=lambda: 0.0),
            **limits,  # type: ignore[arg-type]
        )

    def record(
        self,
        note: str = "no GPU",
        regarding: ObjectReference = POD,
        reason: str = "FailedFilter",
        cause: str = "",
    ) -> None:
        self.recorder.record(
            regarding, kind="Warning", reason=reason, action="Filter", note=note, cause=cause
        )

    async def settle(self) -> None:
        """Run the recorder until nothing is waiting."""
        task = asyncio.create_task(self.recorder.run())
        await until(lambda: task.done() or not self.recorder.waiting)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    @property
    def notes(self) -> list[str]:
        return [body["note"] for method, _, body in self.session.requests if method == "POST"]


async def test_an_event_carries_all_that_the_api_requires() -> None:
    recording = Recording()
    recording.record()
    assert recording.recorder.waiting == 1
    assert recording.session.requests == [], "nothing is sent by record itself"
    await recording.settle()
    ((method, path, body),) = recording.session.requests
    assert (method, path) == ("POST", PATH)
    name = body["metadata"].pop("name")
    assert name.startswith("a.")
    assert body == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"namespace": "ml"},
        "eventTime": "2023-11-14T22:30:00.000000Z",
        "reportingController": "gpushare.dev/scheduler",
        "reportingInstance": "extender-0",
        "type": "Warning",
        "reason": "FailedFilter",
        "action": "Filter",
        "note": "no GPU",
        "regarding": {"apiVersion": "v1", "kind": "Pod", "name": "a", "namespace": "ml", "uid": "uid-a"},
    }
    assert (recording.recorder.written, recording.recorder.dropped) == (1, 0)


async def test_an_event_about_a_node_is_in_the_default_namespace() -> None:
    recording = Recording()
    recording.record(regarding=node_reference("n1"))
    await recording.settle()
    assert recording.session.requests[0][1] == "/apis/events.k8s.io/v1/namespaces/default/events"


async def test_reports_of_one_cause_are_one_event_whatever_their_numbers() -> None:
    recording = Recording()
    for free_gib in range(4):
        recording.record(f"largest free: {free_gib} GiB", cause="memory")
    recording.record("quota is used up", cause="quota")
    await recording.settle()
    # The note of a written event cannot be changed: the first one stays.
    assert recording.notes == ["largest free: 0 GiB", "quota is used up"]
    ((_, _, patch),) = [one for one in recording.session.requests if one[0] == "PATCH"]
    assert patch["series"]["count"] == 4


async def test_repeated_reports_become_a_series_written_at_growing_intervals() -> None:
    recording = Recording()
    for _ in range(3):
        recording.record()
    await recording.settle()
    (_, _, created), (method, path, patch) = recording.session.requests
    assert (method, path) == ("PATCH", f"{PATH}/{created['metadata']['name']}")
    assert patch == {"series": {"count": 3, "lastObservedTime": "2023-11-14T22:30:00.000000Z"}}
    recording.session.requests.clear()
    for _ in range(100):
        recording.record()
        recording.clock.now_s += 1.0
        if recording.recorder._next_due() is not None:
            await recording.recorder.flush()
    counts = [body["series"]["count"] for _, _, body in recording.session.requests]
    assert counts == [4, 6, 10, 18, 34, 66], "pauses of 1, 2, 4, 8, 16 and 32 s"
    await recording.settle()
    assert recording.session.requests[-1][2]["series"]["count"] == 103


async def test_different_reports_of_an_object_are_separate_events_named_in_their_order() -> None:
    recording = Recording()
    for pause_s, more in enumerate(
        ({}, {"note": "no memory"}, {"reason": "Failed"}, {"cause": "c"}, {"cause": "d"})
    ):
        recording.clock.now_s += pause_s
        recording.record(**more)
    recording.record("no GPU", regarding=ObjectReference("Pod", "a", "ml", "uid-of-another"))
    await recording.settle()
    named = [body["metadata"]["name"] for _, _, body in recording.session.requests]
    assert len(set(named)) == len(named) == 6
    assert sorted(named[:5]) == named[:5]


async def test_a_report_that_recurs_after_a_long_pause_is_a_new_event() -> None:
    recording = Recording()
    recording.record()
    await recording.settle()
    recording.clock.now_s += SERIES_END_S
    recording.record()
    await recording.settle()
    assert recording.notes == ["no GPU", "no GPU"]


async def test_an_unavailable_server_is_retried_and_nothing_is_lost() -> None:
    unreachable = Unreachable(PATH, "no connection", sent=False)
    recording = Recording(unreachable, unreachable, ApiError(429, "", "later", PATH, retry_after_s=5.0))
    recording.record("one")
    recording.record("two")
    await recording.settle()
    assert recording.notes == ["one", "one", "one", "one", "two"]
    assert recording.clock.slept[:3] == [0.2, 0.4, 5.0]
    assert (recording.recorder.written, recording.recorder.dropped) == (2, 0)


async def test_repeated_events_are_counted_while_the_server_is_unavailable_for_long() -> None:
    recording = Recording()
    recording.record()
    recording.clock.now_s += SERIES_END_S
    recording.record()
    await recording.settle()
    assert [method for method, _, _ in recording.session.requests] == ["POST", "PATCH"]
    assert recording.session.requests[1][2]["series"]["count"] == 2


async def test_a_creation_whose_response_was_lost_is_not_duplicated() -> None:
    recording = Recording(Unreachable(PATH, "cut", sent=None), refusal(409))
    recording.record()
    await recording.settle()
    first, second = (body["metadata"]["name"] for _, _, body in recording.session.requests)
    assert first == second
    assert recording.recorder.written == 1


async def test_a_series_count_that_was_not_accepted_is_written_later() -> None:
    recording = Recording(None, Unreachable(PATH, "cut", sent=None))
    recording.record()
    recording.record()
    await recording.settle()
    assert [method for method, _, _ in recording.session.requests] == ["POST", "PATCH", "PATCH"]


async def test_an_event_that_the_server_rejects_permanently_is_dropped_and_logged(caplog: Any) -> None:
    recording = Recording(refusal(403))
    recording.record("one")
    recording.record("two")
    await recording.settle()
    assert recording.notes == ["one", "two"]
    assert (recording.recorder.written, recording.recorder.dropped) == (1, 1)
    assert "event FailedFilter about Pod a is not written: " in caplog.text


async def test_an_event_with_an_invalid_namespace_is_dropped() -> None:
    recording = Recording()
    recording.record(regarding=ObjectReference("Pod", "a", "../x", "u"))
    await recording.settle()
    assert (recording.session.requests, recording.recorder.dropped) == ([], 1)


async def test_a_series_whose_event_has_expired_becomes_a_new_event_with_the_current_text() -> None:
    recording = Recording()
    recording.record("2 GiB free", cause="memory")
    await recording.settle()
    recording.session.faults.append(refusal(404))
    recording.clock.now_s += 100.0
    recording.record("3 GiB free", cause="memory")
    await recording.settle()
    (_, _, old), (lost, _, _), (again, _, new) = recording.session.requests
    assert (lost, again) == ("PATCH", "POST")
    assert old["metadata"]["name"] != new["metadata"]["name"]
    assert new["eventTime"] > old["eventTime"]
    assert (old["note"], new["note"]) == ("2 GiB free", "3 GiB free")


async def test_the_oldest_event_is_dropped_when_too_many_are_waiting() -> None:
    recording = Recording(waiting_limit=3)
    for number in range(5):
        recording.record(f"note {number}")
    recording.record("note 2")
    assert (recording.recorder.waiting, recording.recorder.dropped) == (3, 2)
    await recording.settle()
    assert sorted(recording.notes) == ["note 2", "note 3", "note 4"]


async def test_the_number_of_remembered_events_is_bounded() -> None:
    recording = Recording(known_limit=2)
    for number in range(4):
        recording.record(f"note {number}")
    await recording.settle()
    assert len(recording.recorder._known) == 2
    recording.record("note 0")
    recording.record("note 3")
    await recording.settle()
    assert recording.notes == ["note 0", "note 1", "note 2", "note 3", "note 0"]


async def test_a_long_note_is_cut_between_characters() -> None:
    recording = Recording()
    recording.record("ü" * 2000)
    recording.record("x" * 2000)
    recording.record("ü" * 512)
    recording.record("\ud800")
    await recording.settle()
    long, plain, fits, broken = recording.notes
    assert len(long.encode()) <= 1024
    assert long.rstrip("…") == "ü" * 510
    assert plain == "x" * 1021 + "…"
    assert fits == "ü" * 512
    assert broken == "?"


async def test_events_with_text_that_json_cannot_encode_are_dropped() -> None:
    recording = Recording()
    recording.record(reason="\ud800")
    recording.record("other")
    await recording.settle()
    assert (recording.notes, recording.recorder.dropped) == (["other"], 1)


async def test_a_long_name_leaves_room_for_the_suffix_that_distinguishes_events() -> None:
    recording = Recording()
    recording.record(regarding=ObjectReference("Pod", "p" * 253, "ml", "u"))
    await recording.settle()
    assert len(recording.session.requests[0][2]["metadata"]["name"]) == 253


async def test_flush_tries_each_remaining_event_once() -> None:
    recording = Recording(None, Unreachable(PATH, "cut", sent=None))
    for note in ("one", "two", "three"):
        recording.record(note)
    await recording.recorder.flush()
    assert recording.notes == ["one", "two", "three"]
    assert recording.recorder.waiting == 1


# --- persistent faults: one Event for all reporters -----------------------------------------------------


class Store(FakeSession):
    """An API server's store of Events, for several recorders."""

    def __init__(self) -> None:
        super().__init__()
        self.events: dict[str, Any] = {}

    async def request(self, method: str, path: str, *, body: bytes, **options: object) -> bytes:
        await super().request(method, path, body=body, **options)
        event = msgspec.json.decode(body)
        name = event["metadata"]["name"] if method == "POST" else path.rpartition("/")[2]
        if method == "POST":
            if name in self.events:
                raise refusal(409)
            self.events[name] = event
        elif name not in self.events:
            raise refusal(404)
        else:
            self.events[name] |= event
        return msgspec.json.encode(self.events[name])

    @property
    def counts(self) -> list[int]:
        """How often each was reported, in the order of creation."""
        return [one.get("series", {}).get("count", 1) for one in self.events.values()]


NODE = node_reference("n1")


class Reporter(Recording):
    """One of several processes that report faults."""

    def __init__(self, store: Store, clock: ScriptedClock, instance: str = "agent") -> None:
        super().__init__()
        self.session, self.clock = store, clock
        self.recorder = EventRecorder(
            store,  # type: ignore[arg-type]
            controller=f"gpushare.dev/{instance}",
            instance=instance,
            clock=clock,
            backoff=Backoff(chance=lambda: 0.0),
        )

    async def report(self, occurrence: Occurrence, note: str = "GPU 0 is lost", cause: str = "gpu") -> None:
        self.recorder.record(
            NODE,
            kind="Warning",
            reason="Lost",
            action="Watching",
            note=note,
            cause=cause,
            occurrence=occurrence,
        )
        await self.settle()


async def test_a_fault_that_persists_over_a_restart_of_its_reporter_is_not_reported_again() -> None:
    store, clock = Store(), ScriptedClock()
    await Reporter(store, clock).report("began")
    for _ in range(3):
        clock.now_s += 600.0
        await Reporter(store, clock).report("lasting")
    assert store.counts == [1]


async def test_an_existing_fault_without_an_event_is_reported() -> None:
    store = Store()
    await Reporter(store, ScriptedClock()).report("lasting")
    assert store.counts == [1]


@pytest.mark.parametrize("occurrence", ["lasting", "found", "began"])
async def test_a_fault_that_several_processes_report_is_one_event(occurrence: Occurrence) -> None:
    store, clock = Store(), ScriptedClock()
    reporters = {one: Reporter(store, clock, one) for one in ("agent", "extender-0", "extender-1")}
    for instance, reporter in reporters.items():
        clock.now_s += 5.0
        await reporter.report(occurrence, note=f"as {instance} says it")
    assert [one["note"] for one in store.events.values()] == ["as agent says it"]
    assert store.counts == [1]


async def test_a_fault_that_recurs_is_a_new_event_also_from_a_new_reporter() -> None:
    store, clock = Store(), ScriptedClock()
    first = Reporter(store, clock)
    await first.report("began")
    clock.now_s += 20.0
    await first.report("began")
    assert store.counts == [1, 1]
    clock.now_s += RECENTLY_RECORDED_S
    await Reporter(store, clock).report("began")
    assert store.counts == [1, 1, 1]


async def test_a_fault_reported_just_before_a_restart_is_not_reported_again() -> None:
    store, clock = Store(), ScriptedClock()
    await Reporter(store, clock).report("began")
    clock.now_s += RECENTLY_RECORDED_S - 1.0
    await Reporter(store, clock).report("found")
    assert store.counts == [1]
    clock.now_s += RECENTLY_RECORDED_S
    await Reporter(store, clock).report("found")
    assert store.counts == [1, 1], "after so long it is a new fault"


async def test_a_fault_that_occurs_while_watched_is_new_however_recent_the_last_report() -> None:
    store, clock = Store(), ScriptedClock()
    await Reporter(store, clock).report("began")
    clock.now_s += 5.0
    next_one = Reporter(store, clock)
    clock.now_s += 5.0
    await next_one.report("began")
    assert store.counts == [1, 1]


async def test_an_intermittent_fault_is_three_events_and_the_last_one_goes_on_counting() -> None:
    store, clock = Store(), ScriptedClock()
    one = Reporter(store, clock)
    for _ in range(30):
        await one.report("began")
        clock.now_s += 90.0
    await one.recorder.flush()
    assert len(store.events) == RECURRENCES
    assert store.counts == [1, 1, 28]
    clock.now_s += SERIES_END_S
    await one.report("began")
    assert store.counts == [1, 1, 28, 1], "it had not recurred for long"


async def test_a_persisting_fault_is_counted_on_the_existing_event() -> None:
    store, clock = Store(), ScriptedClock()
    await Reporter(store, clock).report("lasting")
    clock.now_s += 1000.0
    later = Reporter(store, clock)
    for _ in range(3):
        await later.report("lasting")
        clock.now_s += 1000.0
    assert store.counts == [3], "the first after the start is not counted"


async def test_other_causes_and_other_objects_have_separate_events() -> None:
    store, clock = Store(), ScriptedClock()
    one = Reporter(store, clock)
    await one.report("lasting", cause="GPU 0")
    await one.report("lasting", cause="GPU 1")
    await one.report("lasting", cause="", note="\ud800")
    assert store.counts == [1, 1, 1]


async def test_a_fault_whose_first_response_was_lost_is_written_once() -> None:
    store, clock = Store(), ScriptedClock()
    store.faults.append(None)
    lost = Reporter(store, clock)
    lost.recorder.record(NODE, kind="Warning", reason="Lost", action="W", note="n", occurrence="began")
    (known,) = lost.recorder._waiting.values()
    store.events[known.name] = msgspec.json.decode(lost.recorder._event(known))
    clock.now_s += 1000.0
    await lost.settle()
    assert store.counts == [1]


async def test_an_event_that_expires_while_it_is_read_is_posted_again() -> None:
    store, clock = Store(), ScriptedClock()
    store.faults += [refusal(409), refusal(404), None]
    await Reporter(store, clock).report("lasting")
    assert store.counts == [1]


async def test_a_server_that_fails_while_an_event_is_read_is_retried() -> None:
    store, clock = Store(), ScriptedClock()
    store.faults += [refusal(409), Unreachable(PATH, "away", sent=False)]
    await Reporter(store, clock).report("lasting")
    assert store.counts == [1]


async def test_an_unreadable_event_of_our_name_does_not_prevent_a_report() -> None:
    store, clock = Store(), ScriptedClock()
    await Reporter(store, clock).report("lasting")
    (event,) = store.events.values()
    event["series"] = "?"
    await Reporter(store, clock).report("lasting")
    assert len(store.events) == 2
    event |= {"series": None, "eventTime": "?"}
    await Reporter(store, clock).report("found")
    assert len(store.events) == 2, "the other one was reported just now"


async def test_the_search_for_a_free_name_is_bounded() -> None:
    recording = Recording(*[refusal(409), None] * 100)
    recording.recorder.record(NODE, kind="Warning", reason="Lost", action="W", note="n", occurrence="began")
    await recording.settle()
    assert len(recording.session.requests) == 2 * 64
    assert (
        len({body["metadata"]["name"] for method, _, body in recording.session.requests if method == "POST"})
        == 64
    )


async def test_a_fault_that_outlasts_its_event_gets_a_new_event_under_another_name() -> None:
    store, clock = Store(), ScriptedClock()
    one = Reporter(store, clock)
    await one.report("lasting")
    (old,) = store.events
    del store.events[old]
    clock.now_s += 1000.0
    await one.report("lasting")
    (new,) = store.events
    assert new != old
