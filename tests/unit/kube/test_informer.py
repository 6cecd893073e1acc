"""The informer against an in-memory server: scripted gaps, and the handler's calls."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from gpushare.kube.backoff import Backoff
from gpushare.kube.client.errors import ApiError, MalformedAnswer, Unreachable
from gpushare.kube.watch.informer import Informer
from tests.unit.kube.scripted import PATH, ScriptedClock, ScriptedServer, View, decode, until


@asynccontextmanager
async def following(
    server: ScriptedServer, view: View, **options: Any
) -> AsyncIterator[Informer[tuple[str, str, object]]]:
    """A running informer, synced and with no events left to deliver."""
    clock = options.pop("clock", ScriptedClock())
    backoff = Backoff(chance=lambda: 0.0)
    informer = Informer(server, PATH, decode, view, clock=clock, backoff=backoff, **options)
    task = asyncio.create_task(informer.run())
    try:
        await until(lambda: task.done() or (informer.synced.is_set() and server.idle.is_set()))
        yield informer
        if task.done():
            await task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def agrees(server: ScriptedServer, view: View) -> bool:
    return view.items == server.view()


async def test_a_list_is_read_page_by_page_and_events_follow_in_order() -> None:
    server, view = ScriptedServer(), View()
    for name in "abcde":
        server.create(name)
    async with following(server, view, page_size=2, params={"labelSelector": "gpu"}) as informer:
        assert view.changes == ["+a=0", "+b=0", "+c=0", "+d=0", "+e=0"]
        assert [query.get("limit") for query in server.requests] == ["2", "2", "2", None]
        assert all(query["labelSelector"] == "gpu" for query in server.requests)
        watch = server.requests[-1]
        assert (watch["watch"], watch["allowWatchBookmarks"], watch["resourceVersion"]) == ("1", "true", "15")
        assert 300 <= int(watch["timeoutSeconds"]) <= 600
        assert view.syncs == 1
        view.changes.clear()
        server.modify("a", 1)
        server.delete("b")
        server.create("f")
        server.modify("a", 2)
        await until(server.idle.is_set)
        assert view.changes == ["+a=1", "-b", "+f=0", "+a=2"]
        figures = informer.figures
        assert (figures.synced, figures.objects, figures.events, figures.relists) == (True, 5, 4, 0)
        assert (figures.reconnects, figures.unreadable, figures.last_error) == (0, 0, "")
        assert figures.last_received_s == 1000.0


async def test_an_empty_collection_is_synced_too() -> None:
    server, view = ScriptedServer(), View()
    async with following(server, view) as informer:
        assert informer.synced.is_set()
        assert view.syncs == 1
        server.create("a")
        await until(lambda: agrees(server, view))


async def test_a_cut_watch_is_resumed_where_it_was() -> None:
    server, view = ScriptedServer(), View()
    server.create("a")
    clock = ScriptedClock()
    async with following(server, view, clock=clock) as informer:
        server.modify("a", 1)
        await until(server.idle.is_set)
        server.fault("cut")
        await until(lambda: informer.figures.reconnects == 1)
        server.modify("a", 2)
        await until(lambda: agrees(server, view))
        assert [query["resourceVersion"] for query in server.requests if "watch" in query] == ["11", "12"]
        assert view.changes == ["+a=0", "+a=1", "+a=2"]
        assert (server.lists, informer.figures.relists, informer.figures.reconnects) == (1, 0, 1)
        assert clock.slept == [0.2]


async def test_bookmarks_advance_the_version_from_which_a_watch_is_resumed() -> None:
    server, view = ScriptedServer(), View()
    server.create("a")
    async with following(server, view) as informer:
        server.version = 500
        server.bookmark()
        await until(server.idle.is_set)
        server.compacted = 400
        server.fault("cut")
        await until(lambda: informer.figures.reconnects == 1 and server.idle.is_set())
        assert server.requests[-1]["resourceVersion"] == "500"
        assert (server.lists, informer.figures.events) == (1, 0)


@pytest.mark.parametrize("how", ["gone", "gone-status", "forbidden", "oversize", "malformed"])
async def test_faults_that_need_a_list_lead_to_one_and_deletions_in_the_gap_are_noticed(how: str) -> None:
    server, view = ScriptedServer(), View()
    for name in "abc":
        server.create(name)
    async with following(server, view) as informer:
        view.changes.clear()
        server.stream_faults.append(how)
        # The watch does not deliver these.
        server.delete("a")
        server.modify("b", 1)
        server.create("d")
        server.log.clear()
        await until(lambda: agrees(server, view) and server.idle.is_set())
        assert view.changes == ["-a", "+b=1", "+d=0"], "removals first, and nothing for unchanged objects"
        assert (server.lists, informer.figures.relists, view.syncs) == (2, 1, 1)


async def test_a_list_is_read_again_on_request() -> None:
    server, view = ScriptedServer(), View()
    for name in "ab":
        server.create(name)
    async with following(server, view) as informer:
        lists = len([query for query in server.requests if "limit" in query])
        server.modify("a", 1)  # which the watch has not delivered yet
        await asyncio.gather(informer.relist(), informer.relist())
        assert agrees(server, view)
        assert len([query for query in server.requests if "limit" in query]) == lists + 1
        server.delete("b")
        await until(server.idle.is_set)
        assert agrees(server, view), "the watch continues"
        cancelled = asyncio.create_task(informer.relist())
        await asyncio.sleep(0)
        cancelled.cancel()
        await informer.relist()
        assert informer.figures.relists == 2
        waiting = asyncio.create_task(informer.relist())
        await asyncio.sleep(0)
    await waiting  # the informer has ended, so nothing may wait for it


async def test_a_resource_version_compacted_while_disconnected_leads_to_a_new_list() -> None:
    server, view = ScriptedServer(), View()
    server.create("a")
    server.create("b")
    async with following(server, view) as informer:
        server.fault("cut")
        server.delete("a")
        server.create("c")
        server.compact()
        await until(lambda: agrees(server, view) and server.idle.is_set())
        assert informer.figures.relists == 1


async def test_an_object_recreated_during_a_gap_is_removed_and_then_added() -> None:
    server, view = ScriptedServer(), View()
    server.create("a", "old")
    server.create("b", "old")
    async with following(server, view):
        view.changes.clear()
        server.fault("gone")
        server.delete("a")
        server.create("a", "new")
        server.modify("b", "new")
        server.log.clear()
        await until(lambda: agrees(server, view))
        assert view.changes == ["-a", "+b=new", "+a=new"]


async def test_a_recreated_object_without_a_delete_event_is_removed_first() -> None:
    server, view = ScriptedServer(), View()
    server.create("a", "old")
    async with following(server, view):
        del server.objects["a"]
        server.create("a", "new")
        await until(lambda: agrees(server, view))
        assert view.changes == ["+a=old", "-a", "+a=new"]


async def test_an_older_state_and_a_predecessors_deletion_change_nothing() -> None:
    server, view = ScriptedServer(), View()
    server.create("a", "first")
    async with following(server, view) as informer:
        early = server.log[0][1]
        server.modify("a", "second")
        end = server.log[-1][1].replace(b"MODIFIED", b"DELETED").replace(b"uid-1", b"uid-0")
        await until(lambda: agrees(server, view))
        server.log += [(100, early), (101, end.replace(b'"12"', b'"101"'))]
        server.bookmark()
        server._wake()
        await until(lambda: informer.figures.events == 3)
        assert view.changes == ["+a=first", "+a=second"]


async def test_a_list_whose_pages_expire_is_restarted() -> None:
    server, view = ScriptedServer(), View()
    for name in "abcd":
        server.create(name)
    server.list_faults += [None, ApiError(410, "Expired", "continue token", PATH)]
    task_view: list[list[str]] = []
    async with following(server, view, page_size=2) as informer:
        task_view.append(list(view.changes))
        assert task_view[0] == ["+a=0", "+b=0", "+c=0", "+d=0"], "the first page is not delivered twice"
        assert (server.lists, view.syncs, informer.figures.reconnects) == (2, 1, 1)


async def test_objects_that_vanish_between_a_broken_list_and_the_next_are_removed() -> None:
    server, view = ScriptedServer(), View()
    for name in "abcd":
        server.create(name)
    server.list_faults += [None, Unreachable(PATH, "the answer was cut", sent=True)]

    class DeletingView(View):
        def upsert(self, item: tuple[str, str, object]) -> None:
            super().upsert(item)
            if "a" in server.objects:
                server.delete("a")

    view = DeletingView()
    async with following(server, view, page_size=2):
        assert agrees(server, view)
        assert view.changes == ["+a=0", "+b=0", "-a", "+c=0", "+d=0"]


async def test_the_backoff_grows_while_the_server_is_unavailable_and_a_good_watch_resets_it() -> None:
    server, view, clock = ScriptedServer(), View(), ScriptedClock()
    server.list_faults += [Unreachable(PATH, "no connection", sent=False)] * 3
    server.list_faults.append(ApiError(429, "TooManyRequests", "later", PATH, retry_after_s=7.0))
    async with following(server, view, clock=clock) as informer:
        assert clock.slept == [0.2, 0.4, 0.8, 7.0]
        assert informer.figures.last_error == ""
        clock.now_s += 60.0
        server.fault("cut")
        await until(lambda: informer.figures.reconnects == 5 and server.idle.is_set())
        assert clock.slept[-1] == 0.2


async def test_a_kind_that_may_be_absent_has_no_objects_until_it_is_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server, view, clock = ScriptedServer(), View(), ScriptedClock()
    absent = ApiError(404, "NotFound", "the server could not find the requested resource", PATH)
    server.list_faults += [absent, absent]
    async with following(server, view, clock=clock, may_be_absent=True) as informer:
        assert view.syncs == 1
        assert clock.slept == [5.0, 5.0]
        assert (informer.figures.last_error, informer.figures.reconnects, caplog.text) == ("", 0, "")
        server.create("a")
        await until(lambda: agrees(server, view))
        # Its definition is deleted, and with it all objects: the watch is cut, and a list finds nothing.
        server.objects.clear()
        server.list_faults.append(absent)
        server.fault("gone")
        await until(lambda: not view.items)


async def test_the_last_error_is_reported_while_it_persists(caplog: pytest.LogCaptureFixture) -> None:
    server, view, reported = ScriptedServer(), View(), []
    server.list_faults.append(ApiError(403, "Forbidden", "pods is forbidden", PATH))

    class ObservingClock(ScriptedClock):
        async def sleep(self, seconds: float) -> None:
            reported.append(informer.figures.last_error)
            await super().sleep(seconds)

    informer = Informer(server, PATH, decode, view, clock=ObservingClock())
    with caplog.at_level(logging.WARNING):
        task = asyncio.create_task(informer.run())
        await informer.synced.wait()
    task.cancel()
    assert reported == ["/api/v1/pods: 403 Forbidden: pods is forbidden"]
    assert "pods is forbidden; listing again in" in caplog.text


async def test_errors_of_other_codes_in_the_stream_back_off_and_resume() -> None:
    server, view, clock = ScriptedServer(), View(), ScriptedClock()
    async with following(server, view, clock=clock) as informer:
        server.fault("broken", "broken", "broken")
        server.create("a")
        await until(lambda: informer.figures.reconnects == 3 and agrees(server, view))
        assert clock.slept == [0.2, 0.4, 0.8]
        assert server.lists == 1


async def test_a_watch_that_never_succeeds_ends_in_a_list() -> None:
    server, view = ScriptedServer(), View()
    async with following(server, view) as informer:
        server.fault(*["broken-status"] * 8)
        await until(lambda: informer.figures.relists == 1 and server.idle.is_set())


async def test_endless_unreadable_lines_back_off_instead_of_spinning() -> None:
    server, view, clock = ScriptedServer(), View(), ScriptedClock()
    async with following(server, view, clock=clock):
        server.fault(*["oversize", "malformed"] * 6)
        await until(lambda: not server.stream_faults and server.idle.is_set())
        assert clock.slept == [min(0.2 * 2.0**tries, 30.0) for tries in range(12)]


async def test_a_watch_that_the_server_ends_on_time_is_reopened_immediately() -> None:
    server, view, clock = ScriptedServer(), View(), ScriptedClock()
    async with following(server, view, clock=clock) as informer:
        clock.now_s += 300.0
        server.fault("end")
        server.create("a")
        await until(lambda: agrees(server, view))
        assert (clock.slept, informer.figures.reconnects) == ([], 0)
        server.fault("end")
        await until(lambda: informer.figures.reconnects == 1)
        assert clock.slept == [0.2], "a watch that ends immediately does not cause spinning"


async def test_a_silent_watch_is_resumed() -> None:
    server, view = ScriptedServer(), View()
    async with following(server, view) as informer:
        server.fault("silent")
        server.create("a")
        await until(lambda: agrees(server, view))
        assert informer.figures.reconnects == 1


async def test_an_object_that_no_longer_matters_is_removed() -> None:
    server, view = ScriptedServer(), View()
    server.create("a")
    server.create("b", "ignore")
    async with following(server, view):
        assert view.changes == ["+a=0"]
        server.modify("a", "ignore")
        server.modify("b", 1)
        server.delete("a")
        await until(server.idle.is_set)
        assert view.changes == ["+a=0", "-a", "+b=1"]


async def test_an_unreadable_object_is_skipped_and_its_old_state_stays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server, view = ScriptedServer(), View()
    server.create("a", "odd")
    server.create("b", 1)
    async with following(server, view) as informer:
        server.modify("b", "odd")
        server.create("c")
        await until(lambda: "c" in view.items)
        server.fault("gone")
        await until(lambda: informer.figures.relists == 1)
        assert {name: value for name, (_, value) in view.items.items()} == {"b": 1, "c": 0}
        assert informer.figures.unreadable == 4
        assert "n/a cannot be read and is ignored (odd)" in caplog.text


async def test_an_item_with_unreadable_metadata_is_skipped() -> None:
    server, view = ScriptedServer(), View()
    server.objects["x"] = {"metadata": {"name": 7}, "value": 0}
    async with following(server, view) as informer:
        assert informer.figures.unreadable == 1
        assert view.items == {}


async def test_versions_that_are_not_numbers_are_never_taken_for_old() -> None:
    server, view = ScriptedServer(), View()
    server.create("a", 0)
    server.objects["a"]["metadata"]["resourceVersion"] = "x1"
    async with following(server, view):
        server.log.append(
            (99, server.log[-1][1].replace(b'"11"', b'"x2"').replace(b'"value":0', b'"value":1'))
        )
        server._wake()
        await until(lambda: view.changes == ["+a=0", "+a=1"])


async def test_an_exception_in_the_handler_ends_the_informer() -> None:
    server = ScriptedServer()
    server.create("a")

    class Failing(View):
        def upsert(self, item: tuple[str, str, object]) -> None:
            raise ZeroDivisionError

    informer = Informer(server, PATH, decode, Failing(), clock=ScriptedClock())
    with pytest.raises(ZeroDivisionError):
        await informer.run()
    assert not informer.synced.is_set()


async def test_a_response_that_is_no_list_is_retried() -> None:
    server, view = ScriptedServer(), View()
    server.list_faults.append(MalformedAnswer(PATH, "the answer is no list"))
    async with following(server, view) as informer:
        assert informer.figures.reconnects == 1
