"""Events: noted at once, written in the background, counted as series, bounded in every way."""

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


class Ears:
    """Stands in for a ``Session``; keeps what is written, and fails as scripted (``None``: succeeds)."""

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


class Talk:
    """A recorder at work, with its ears and its clock."""

    def __init__(self, *faults: KubeError | None, **limits: int) -> None:
        self.ears, self.clock = Ears(*faults), ScriptedClock()
        self.recorder = EventRecorder(
            self.ears,  # type: ignore[arg-type]
            controller="gpushare.dev/scheduler",
            instance="extender-0",
            clock=self.clock,
            backoff=Backoff(chance=lambda: 0.0),
            **limits,  # type: ignore[arg-type]
        )

    def say(
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
        """Run the recorder until nothing waits."""
        task = asyncio.create_task(self.recorder.run())
        await until(lambda: task.done() or not self.recorder.waiting)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    @property
    def names(self) -> list[str]:
        return [body["note"] for method, _, body in self.ears.requests if method == "POST"]


async def test_an_event_carries_all_that_the_api_demands() -> None:
    talk = Talk()
    talk.say()
    assert talk.recorder.waiting == 1
    assert talk.ears.requests == [], "nothing is sent by record itself"
    await talk.settle()
    ((method, path, body),) = talk.ears.requests
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
    assert (talk.recorder.written, talk.recorder.dropped) == (1, 0)


async def test_an_event_about_a_node_lies_in_the_default_namespace() -> None:
    talk = Talk()
    talk.say(regarding=node_reference("n1"))
    await talk.settle()
    assert talk.ears.requests[0][1] == "/apis/events.k8s.io/v1/namespaces/default/events"


async def test_news_of_one_cause_are_one_event_whatever_their_figures() -> None:
    talk = Talk()
    for free_gib in range(4):
        talk.say(f"largest free: {free_gib} GiB", cause="memory")
    talk.say("quota is used up", cause="quota")
    await talk.settle()
    # The note of a written event cannot be changed: the first one stays.
    assert talk.names == ["largest free: 0 GiB", "quota is used up"]
    ((_, _, patch),) = [one for one in talk.ears.requests if one[0] == "PATCH"]
    assert patch["series"]["count"] == 4


async def test_repeated_news_become_a_series_written_at_growing_distances() -> None:
    talk = Talk()
    for _ in range(3):
        talk.say()
    await talk.settle()
    (_, _, created), (method, path, patch) = talk.ears.requests
    assert (method, path) == ("PATCH", f"{PATH}/{created['metadata']['name']}")
    assert patch == {"series": {"count": 3, "lastObservedTime": "2023-11-14T22:30:00.000000Z"}}
    talk.ears.requests.clear()
    for _ in range(100):
        talk.say()
        talk.clock.now_s += 1.0
        if talk.recorder._next_due() is not None:
            await talk.recorder.flush()
    counts = [body["series"]["count"] for _, _, body in talk.ears.requests]
    assert counts == [4, 6, 10, 18, 34, 66], "pauses of 1, 2, 4, 8, 16 and 32 s"
    await talk.settle()
    assert talk.ears.requests[-1][2]["series"]["count"] == 103


async def test_other_news_of_the_same_object_are_events_of_their_own_whose_names_are_in_their_order() -> None:
    talk = Talk()
    for pause_s, more in enumerate(
        ({}, {"note": "no memory"}, {"reason": "Failed"}, {"cause": "c"}, {"cause": "d"})
    ):
        talk.clock.now_s += pause_s
        talk.say(**more)
    talk.say("no GPU", regarding=ObjectReference("Pod", "a", "ml", "uid-of-another"))
    await talk.settle()
    named = [body["metadata"]["name"] for _, _, body in talk.ears.requests]
    assert len(set(named)) == len(named) == 6
    assert sorted(named[:5]) == named[:5]


async def test_news_that_stayed_away_long_are_news_again() -> None:
    talk = Talk()
    talk.say()
    await talk.settle()
    talk.clock.now_s += SERIES_END_S
    talk.say()
    await talk.settle()
    assert talk.names == ["no GPU", "no GPU"]


async def test_a_server_that_is_away_is_waited_out_and_nothing_is_lost() -> None:
    away = Unreachable(PATH, "no connection", sent=False)
    talk = Talk(away, away, ApiError(429, "", "later", PATH, retry_after_s=5.0))
    talk.say("one")
    talk.say("two")
    await talk.settle()
    assert talk.names == ["one", "one", "one", "one", "two"]
    assert talk.clock.slept[:3] == [0.2, 0.4, 5.0]
    assert (talk.recorder.written, talk.recorder.dropped) == (2, 0)


async def test_repeated_events_are_counted_while_the_server_is_away_for_long() -> None:
    talk = Talk()
    talk.say()
    talk.clock.now_s += SERIES_END_S
    talk.say()
    await talk.settle()
    assert [method for method, _, _ in talk.ears.requests] == ["POST", "PATCH"]
    assert talk.ears.requests[1][2]["series"]["count"] == 2


async def test_a_creation_whose_answer_was_lost_is_not_doubled() -> None:
    talk = Talk(Unreachable(PATH, "cut", sent=None), refusal(409))
    talk.say()
    await talk.settle()
    first, second = (body["metadata"]["name"] for _, _, body in talk.ears.requests)
    assert first == second
    assert talk.recorder.written == 1


async def test_a_series_whose_count_was_not_taken_is_counted_later() -> None:
    talk = Talk(None, Unreachable(PATH, "cut", sent=None))
    talk.say()
    talk.say()
    await talk.settle()
    assert [method for method, _, _ in talk.ears.requests] == ["POST", "PATCH", "PATCH"]


async def test_an_event_that_the_server_rejects_permanently_is_dropped_and_logged(caplog: Any) -> None:
    talk = Talk(refusal(403))
    talk.say("one")
    talk.say("two")
    await talk.settle()
    assert talk.names == ["one", "two"]
    assert (talk.recorder.written, talk.recorder.dropped) == (1, 1)
    assert "event FailedFilter about Pod a is not written: " in caplog.text


async def test_a_namespace_that_can_be_none_is_dropped() -> None:
    talk = Talk()
    talk.say(regarding=ObjectReference("Pod", "a", "../x", "u"))
    await talk.settle()
    assert (talk.ears.requests, talk.recorder.dropped) == ([], 1)


async def test_a_series_whose_event_has_expired_becomes_a_new_event_with_the_current_text() -> None:
    talk = Talk()
    talk.say("2 GiB free", cause="memory")
    await talk.settle()
    talk.ears.faults.append(refusal(404))
    talk.clock.now_s += 100.0
    talk.say("3 GiB free", cause="memory")
    await talk.settle()
    (_, _, old), (lost, _, _), (again, _, new) = talk.ears.requests
    assert (lost, again) == ("PATCH", "POST")
    assert old["metadata"]["name"] != new["metadata"]["name"]
    assert new["eventTime"] > old["eventTime"]
    assert (old["note"], new["note"]) == ("2 GiB free", "3 GiB free")


async def test_when_too_much_waits_the_oldest_goes() -> None:
    talk = Talk(waiting_limit=3)
    for number in range(5):
        talk.say(f"note {number}")
    talk.say("note 2")
    assert (talk.recorder.waiting, talk.recorder.dropped) == (3, 2)
    await talk.settle()
    assert sorted(talk.names) == ["note 2", "note 3", "note 4"]


async def test_what_is_remembered_is_bounded() -> None:
    talk = Talk(known_limit=2)
    for number in range(4):
        talk.say(f"note {number}")
    await talk.settle()
    assert len(talk.recorder._known) == 2
    talk.say("note 0")
    talk.say("note 3")
    await talk.settle()
    assert talk.names == ["note 0", "note 1", "note 2", "note 3", "note 0"]


async def test_a_long_note_is_cut_between_characters() -> None:
    talk = Talk()
    talk.say("ü" * 2000)
    talk.say("x" * 2000)
    talk.say("ü" * 512)
    talk.say("\ud800")
    await talk.settle()
    long, plain, fits, broken = talk.names
    assert len(long.encode()) <= 1024
    assert long.rstrip("…") == "ü" * 510
    assert plain == "x" * 1021 + "…"
    assert fits == "ü" * 512
    assert broken == "?"


async def test_words_that_no_json_can_hold_are_dropped() -> None:
    talk = Talk()
    talk.say(reason="\ud800")
    talk.say("other")
    await talk.settle()
    assert (talk.names, talk.recorder.dropped) == (["other"], 1)


async def test_a_long_name_leaves_room_for_the_suffix_that_distinguishes_events() -> None:
    talk = Talk()
    talk.say(regarding=ObjectReference("Pod", "p" * 253, "ml", "u"))
    await talk.settle()
    assert len(talk.ears.requests[0][2]["metadata"]["name"]) == 253


async def test_flush_writes_what_is_left_trying_each_once() -> None:
    talk = Talk(None, Unreachable(PATH, "cut", sent=None))
    for note in ("one", "two", "three"):
        talk.say(note)
    await talk.recorder.flush()
    assert talk.names == ["one", "two", "three"]
    assert talk.recorder.waiting == 1


# --- what lasts: one Event for all who see it -----------------------------------------------------


class Store(Ears):
    """An API server's store of Events, for several recorders."""

    def __init__(self) -> None:
        super().__init__()
        self.there: dict[str, Any] = {}

    async def request(self, method: str, path: str, *, body: bytes, **options: object) -> bytes:
        await super().request(method, path, body=body, **options)
        event = msgspec.json.decode(body)
        name = event["metadata"]["name"] if method == "POST" else path.rpartition("/")[2]
        if method == "POST":
            if name in self.there:
                raise refusal(409)
            self.there[name] = event
        elif name not in self.there:
            raise refusal(404)
        else:
            self.there[name] |= event
        return msgspec.json.encode(self.there[name])

    @property
    def counts(self) -> list[int]:
        """How often each was reported, in the order in which they came."""
        return [one.get("series", {}).get("count", 1) for one in self.there.values()]


NODE = node_reference("n1")


class Teller(Talk):
    """One of several processes that tell of what they see."""

    def __init__(self, store: Store, clock: ScriptedClock, instance: str = "agent") -> None:
        super().__init__()
        self.ears, self.clock = store, clock
        self.recorder = EventRecorder(
            store,  # type: ignore[arg-type]
            controller=f"gpushare.dev/{instance}",
            instance=instance,
            clock=clock,
            backoff=Backoff(chance=lambda: 0.0),
        )

    async def tell(self, occurrence: Occurrence, note: str = "GPU 0 is lost", cause: str = "gpu") -> None:
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
    await Teller(store, clock).tell("began")
    for _ in range(3):
        clock.now_s += 600.0
        await Teller(store, clock).tell("lasting")
    assert store.counts == [1]


async def test_an_existing_fault_without_an_event_is_reported() -> None:
    store = Store()
    await Teller(store, ScriptedClock()).tell("lasting")
    assert store.counts == [1]


@pytest.mark.parametrize("occurrence", ["lasting", "found", "began"])
async def test_what_several_see_at_once_is_one_event(occurrence: Occurrence) -> None:
    store, clock = Store(), ScriptedClock()
    tellers = {one: Teller(store, clock, one) for one in ("agent", "extender-0", "extender-1")}
    for instance, teller in tellers.items():
        clock.now_s += 5.0
        await teller.tell(occurrence, note=f"as {instance} says it")
    assert [one["note"] for one in store.there.values()] == ["as agent says it"]
    assert store.counts == [1]


async def test_a_fault_that_came_back_is_a_new_event_and_so_it_is_to_a_new_teller() -> None:
    store, clock = Store(), ScriptedClock()
    first = Teller(store, clock)
    await first.tell("began")
    clock.now_s += 20.0
    await first.tell("began")
    assert store.counts == [1, 1]
    clock.now_s += RECENTLY_RECORDED_S
    await Teller(store, clock).tell("began")
    assert store.counts == [1, 1, 1]


async def test_a_fault_reported_just_before_a_restart_is_not_reported_again() -> None:
    store, clock = Store(), ScriptedClock()
    await Teller(store, clock).tell("began")
    clock.now_s += RECENTLY_RECORDED_S - 1.0
    await Teller(store, clock).tell("found")
    assert store.counts == [1]
    clock.now_s += RECENTLY_RECORDED_S
    await Teller(store, clock).tell("found")
    assert store.counts == [1, 1], "so long after, it is another time"


async def test_a_fault_that_occurs_while_watched_is_new_however_recent_the_last_report() -> None:
    store, clock = Store(), ScriptedClock()
    await Teller(store, clock).tell("began")
    clock.now_s += 5.0
    next_one = Teller(store, clock)
    clock.now_s += 5.0
    await next_one.tell("began")
    assert store.counts == [1, 1]


async def test_an_intermittent_fault_is_three_events_and_the_last_one_counts_on() -> None:
    store, clock = Store(), ScriptedClock()
    one = Teller(store, clock)
    for _ in range(30):
        await one.tell("began")
        clock.now_s += 90.0
    await one.recorder.flush()
    assert len(store.there) == RECURRENCES
    assert store.counts == [1, 1, 28]
    clock.now_s += SERIES_END_S
    await one.tell("began")
    assert store.counts == [1, 1, 28, 1], "it had stayed away"


async def test_a_persisting_fault_is_counted_on_the_existing_event() -> None:
    store, clock = Store(), ScriptedClock()
    await Teller(store, clock).tell("lasting")
    clock.now_s += 1000.0
    later = Teller(store, clock)
    for _ in range(3):
        await later.tell("lasting")
        clock.now_s += 1000.0
    assert store.counts == [3], "the first after the start is left"


async def test_other_causes_and_other_objects_have_events_of_their_own() -> None:
    store, clock = Store(), ScriptedClock()
    one = Teller(store, clock)
    await one.tell("lasting", cause="GPU 0")
    await one.tell("lasting", cause="GPU 1")
    await one.tell("lasting", cause="", note="\ud800")
    assert store.counts == [1, 1, 1]


async def test_a_fault_whose_first_answer_was_lost_is_written_once() -> None:
    store, clock = Store(), ScriptedClock()
    store.faults.append(None)
    lost = Teller(store, clock)
    lost.recorder.record(NODE, kind="Warning", reason="Lost", action="W", note="n", occurrence="began")
    (known,) = lost.recorder._waiting.values()
    store.there[known.name] = msgspec.json.decode(lost.recorder._event(known))
    clock.now_s += 1000.0
    await lost.settle()
    assert store.counts == [1]


async def test_an_event_that_expires_while_it_is_read_is_posted_again() -> None:
    store, clock = Store(), ScriptedClock()
    store.faults += [refusal(409), refusal(404), None]
    await Teller(store, clock).tell("lasting")
    assert store.counts == [1]


async def test_a_server_that_fails_while_it_is_looked_at_is_waited_out() -> None:
    store, clock = Store(), ScriptedClock()
    store.faults += [refusal(409), Unreachable(PATH, "away", sent=False)]
    await Teller(store, clock).tell("lasting")
    assert store.counts == [1]


async def test_an_unreadable_event_of_our_name_does_not_prevent_a_report() -> None:
    store, clock = Store(), ScriptedClock()
    await Teller(store, clock).tell("lasting")
    (there,) = store.there.values()
    there["series"] = "?"
    await Teller(store, clock).tell("lasting")
    assert len(store.there) == 2
    there |= {"series": None, "eventTime": "?"}
    await Teller(store, clock).tell("found")
    assert len(store.there) == 2, "the other one was reported just now"


async def test_there_is_an_end_to_looking_for_a_name() -> None:
    talk = Talk(*[refusal(409), None] * 100)
    talk.recorder.record(NODE, kind="Warning", reason="Lost", action="W", note="n", occurrence="began")
    await talk.settle()
    assert len(talk.ears.requests) == 2 * 64
    assert len({body["metadata"]["name"] for method, _, body in talk.ears.requests if method == "POST"}) == 64


async def test_a_fault_that_outlasts_its_event_gets_a_new_event_under_another_name() -> None:
    store, clock = Store(), ScriptedClock()
    one = Teller(store, clock)
    await one.tell("lasting")
    (old,) = store.there
    del store.there[old]
    clock.now_s += 1000.0
    await one.tell("lasting")
    (new,) = store.there
    assert new != old
