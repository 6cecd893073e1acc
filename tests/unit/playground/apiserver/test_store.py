"""The store: one revision counter, bounded history, cursors and remembered lists."""

import asyncio

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_playground.apiserver.store import (
    ADDED,
    DELETED,
    MODIFIED,
    SNAPSHOT_AGE_S,
    SNAPSHOTS,
    HistoryGone,
    SnapshotGone,
    Store,
)


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def make(**options):
    return Store(clock=Clock(), **options)


def obj(name, **more):
    return {"metadata": {"name": name, "uid": f"uid-{name}"}, **more}


def put(store, name, namespace="default", **more):
    return store.put("pods", namespace, name, obj(name, **more))


def test_every_write_counts_up_the_one_revision():
    store = make()
    first = put(store, "a")
    second = store.put("nodes", "", "n", obj("n"))
    third = store.remove("pods", "default", "a")
    assert [first.revision, second.revision, third.revision] == [2, 3, 4]
    assert store.revision == 4
    assert third.obj["metadata"]["resourceVersion"] == "4"
    assert first.obj["metadata"]["resourceVersion"] == "2"


def test_objects_are_listed_by_namespace_and_name():
    store = make()
    for namespace, name in (("b", "x"), ("a", "z"), ("a", "y")):
        put(store, name, namespace)
    assert [(one.namespace, one.name) for one in store.items("pods")] == [("a", "y"), ("a", "z"), ("b", "x")]
    assert [one.name for one in store.items("pods", "a")] == ["y", "z"]
    assert store.items("pods", "nowhere") == store.items("nothing") == []
    assert (store.count("pods"), store.count("pods", "b"), store.count("nothing")) == (3, 1, 0)


def test_a_stored_version_never_changes():
    store = make()
    before = put(store, "a", value=1)
    body = before.body
    put(store, "a", value=2)
    assert (before.obj["value"], before.body) == (1, body)
    assert store.get("pods", "default", "a").obj["value"] == 2


def test_a_cursor_sees_changes_after_its_revision_only():
    store = make()
    first = put(store, "a")
    put(store, "a", value=1)
    store.remove("pods", "default", "a")
    cursor = store.watch("pods", first.revision)
    changes = cursor.pending()
    assert [change.kind for change in changes] == [MODIFIED, DELETED]
    assert changes[1].previous.obj["value"] == 1
    assert cursor.pending() == []
    put(store, "b")
    assert [change.kind for change in cursor.pending()] == [ADDED]
    assert cursor.revision == store.revision


def test_a_change_is_one_line_around_the_object_which_is_encoded_once():
    store = make()
    cursor = store.watch("pods", store.revision)
    put(store, "a")
    change = cursor.pending()[0]
    assert orjson.loads(change.line) == {"type": ADDED, "object": change.record.obj}
    assert change.record.body is change.record.body
    assert change.line.endswith(b"\n")


def test_a_cursor_before_the_history_is_refused_with_the_oldest_revision():
    store = make(history=5)
    for number in range(20):
        put(store, f"p{number}")
    with pytest.raises(HistoryGone) as error:
        store.watch("pods", 3)
    assert (error.value.requested, error.value.oldest) == (3, 17)
    assert len(store.watch("pods", 16).pending()) == 5


def test_a_cursor_that_falls_behind_raises_an_error():
    store = make(history=5)
    cursor = store.watch("pods", store.revision)
    for number in range(30):
        put(store, f"p{number}")
    with pytest.raises(HistoryGone):
        cursor.pending()


def test_forgetting_ends_older_watches_and_tokens():
    store = make()
    put(store, "a")
    revision = store.keep_snapshot("pods", None, store.items("pods"))
    store.forget("pods")
    with pytest.raises(HistoryGone):
        store.watch("pods", 1)
    with pytest.raises(SnapshotGone):
        store.snapshot("pods", None, revision)
    put(store, "b")
    assert [change.record.name for change in store.watch("pods", revision).pending()] == ["b"]


def test_remembered_lists_are_bounded_in_number_and_age():
    clock = Clock()
    store = Store(clock=clock)
    revisions = []
    for number in range(SNAPSHOTS + 1):
        put(store, f"p{number}")
        revisions.append(store.keep_snapshot("pods", None, store.items("pods")))
    with pytest.raises(SnapshotGone):
        store.snapshot("pods", None, revisions[0])
    assert len(store.snapshot("pods", None, revisions[1])) == 2
    clock.now = SNAPSHOT_AGE_S + 1
    with pytest.raises(SnapshotGone):
        store.snapshot("pods", None, revisions[1])


async def test_waiting_ends_with_the_next_change_of_the_same_collection():
    store = make()
    cursor = store.watch("pods", store.revision)
    assert not await cursor.wait(0)
    waiting = asyncio.ensure_future(cursor.wait(10))
    await asyncio.sleep(0)
    store.put("nodes", "", "n", obj("n"))
    await asyncio.sleep(0)
    assert not waiting.done()
    put(store, "a")
    assert await waiting
    assert await cursor.wait(0)


async def test_a_cancelled_wait_leaves_nothing_behind():
    store = make()
    cursor = store.watch("pods", store.revision)
    waiting = asyncio.ensure_future(cursor.wait(10))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    put(store, "a")
    assert len(cursor.pending()) == 1


def test_listeners_are_called_during_each_write():
    store = make()
    changes = []
    store.listen(lambda collection, change: changes.append((collection, change.kind, store.revision)))
    put(store, "a")
    store.remove("pods", "default", "a")
    assert changes == [("pods", ADDED, 2), ("pods", DELETED, 3)]


_WRITES = st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60)


@given(writes=_WRITES, start=st.integers(0, 60))
def test_a_list_and_the_changes_after_it_give_the_present_state(writes, start):
    store = make(history=8)
    mirror, cursor = {}, None
    for step, (name, delete) in enumerate(writes):
        if step == start:
            mirror = {one.name: one.obj for one in store.items("pods")}
            cursor = store.watch("pods", store.revision)
        if delete:
            store.remove("pods", "default", name)
        else:
            put(store, name, step=step)
        if cursor is not None and step % 3 == 0:
            _follow(mirror, cursor)
    if cursor is not None:
        _follow(mirror, cursor)
        assert mirror == {one.name: one.obj for one in store.items("pods")}


def _follow(mirror, cursor):
    for change in cursor.pending():
        if change.kind == DELETED:
            del mirror[change.record.name]
        else:
            mirror[change.record.name] = change.record.obj
