"""The objects, their common revision counter, and the history from which watches are served.

It plays the role of etcd and of the real API server's watch cache. It knows neither HTTP nor kinds:
an object is a dict with ``metadata``, stored under (collection, namespace, name). A stored object is
never changed in place: writers pass new dicts, so that readers may keep what they read without copying.

Every write increments ``Store.revision`` and appends one ``Change`` to its collection's history. A
watch is a cursor into that history: nothing is queued per watcher, a slow watcher costs nothing, and
one that falls behind the bounded history is notified (``HistoryGone``) and lists again. The encoded
form of an object is created once and shared by all readers.

All methods are synchronous and must be called from one event loop; between two awaits a
read-modify-write is therefore one transaction.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import orjson

from gpushare_playground.apiserver.errors import Object

HISTORY: Final = 10_000
SNAPSHOTS: Final = 64
SNAPSHOT_AGE_S: Final = 300.0

ADDED: Final = "ADDED"
MODIFIED: Final = "MODIFIED"
DELETED: Final = "DELETED"


Clock = Callable[[], float]
"""Monotonic seconds; such as ``time.monotonic``."""


class HistoryGone(LookupError):
    """The ``requested`` revision is older than ``oldest``, the oldest one in the history."""

    def __init__(self, requested: int, oldest: int) -> None:
        super().__init__(f"too old resource version: {requested} ({oldest})")
        self.requested = requested
        self.oldest = oldest


class SnapshotGone(LookupError):
    """The list of a ``continue`` token is no longer stored."""


class Record:
    """One version of one object: its dict (read only), revision and, once requested, its JSON."""

    __slots__ = ("_body", "name", "namespace", "obj", "revision")

    def __init__(self, namespace: str, name: str, obj: Object, revision: int) -> None:
        self.namespace = namespace
        self.name = name
        self.obj = obj
        self.revision = revision
        self._body: bytes | None = None

    @property
    def body(self) -> bytes:
        """The object as JSON; encoded only at the first call."""
        if self._body is None:
            self._body = orjson.dumps(self.obj)
        return self._body


class Change:
    """One write: its type, the object after it (for ``DELETED``: the last state) and before it."""

    __slots__ = ("kind", "previous", "record", "revision")

    def __init__(self, kind: str, record: Record, previous: Record | None) -> None:
        self.kind = kind
        self.record = record
        self.previous = previous
        self.revision = record.revision

    @property
    def line(self) -> bytes:
        """The watch event as a line of JSON, around the object's shared encoded form."""
        return event_line(self.kind, self.record.body)


def event_line(kind: str, body: bytes) -> bytes:
    """A watch event as it is sent."""
    return b'{"type":"%s","object":%s}\n' % (kind.encode(), body)


@dataclass(slots=True)
class _Collection:
    objects: dict[str, dict[str, Record]] = field(default_factory=dict)
    history: list[Change] = field(default_factory=list)
    dropped: int = 0
    """How many changes have been dropped from the history: the position of its first element."""
    gone_revision: int = 0
    """Revision of the newest change that was dropped from the history."""
    waiters: set["asyncio.Future[None]"] = field(default_factory=set)


@dataclass(slots=True)
class _Snapshot:
    records: list[Record]
    made_at: float


class Store:
    """All collections. ``history`` limits the changes stored per collection."""

    def __init__(self, *, clock: Clock, history: int = HISTORY) -> None:
        self.revision = 1
        self._history = max(1, history)
        self._clock = clock
        self._collections: dict[str, _Collection] = {}
        self._snapshots: OrderedDict[tuple[str, str | None, int], _Snapshot] = OrderedDict()
        self._listeners: list[Callable[[str, Change], None]] = []

    def collections(self) -> list[str]:
        """Names of all collections that ever had an object."""
        return list(self._collections)

    def listen(self, listener: Callable[[str, Change], None]) -> None:
        """Call ``listener(collection, change)`` immediately after every write, within the writer's step."""
        self._listeners.append(listener)

    def _of(self, collection: str) -> _Collection:
        held = self._collections.get(collection)
        if held is None:
            held = self._collections[collection] = _Collection()
        return held

    def get(self, collection: str, namespace: str, name: str) -> Record | None:
        """The object, or None; O(1). ``namespace`` is ``""`` for cluster-wide kinds."""
        held = self._collections.get(collection)
        return None if held is None else held.objects.get(namespace, {}).get(name)

    def items(self, collection: str, namespace: str | None = None) -> list[Record]:
        """The objects of one namespace, or of all (None), ordered by namespace and name."""
        held = self._collections.get(collection)
        if held is None:
            return []
        if namespace is not None:
            here = held.objects.get(namespace, {})
            return [here[name] for name in sorted(here)]
        return [
            here[name]
            for space in sorted(held.objects)
            for here in (held.objects[space],)
            for name in sorted(here)
        ]

    def count(self, collection: str, namespace: str | None = None) -> int:
        """The number of objects that ``items`` would return."""
        held = self._collections.get(collection)
        if held is None:
            return 0
        if namespace is not None:
            return len(held.objects.get(namespace, {}))
        return sum(map(len, held.objects.values()))

    def put(self, collection: str, namespace: str, name: str, obj: Object) -> Record:
        """Create or replace an object. The store owns ``obj`` from now on, and sets its resourceVersion."""
        self.revision += 1
        obj["metadata"]["resourceVersion"] = str(self.revision)
        record = Record(namespace, name, obj, self.revision)
        held = self._of(collection)
        space = held.objects.setdefault(namespace, {})
        previous = space.get(name)
        space[name] = record
        self._append(collection, held, Change(ADDED if previous is None else MODIFIED, record, previous))
        return record

    def remove(self, collection: str, namespace: str, name: str) -> Record | None:
        """Remove an object; returns its last state (with the removal's revision), None if it did not exist."""
        held = self._of(collection)
        space = held.objects.get(namespace, {})
        previous = space.pop(name, None)
        if previous is None:
            return None
        if not space:
            held.objects.pop(namespace, None)
        self.revision += 1
        last = dict(previous.obj)
        last["metadata"] = {**previous.obj["metadata"], "resourceVersion": str(self.revision)}
        record = Record(namespace, name, last, self.revision)
        self._append(collection, held, Change(DELETED, record, previous))
        return record

    def _append(self, collection: str, held: _Collection, change: Change) -> None:
        held.history.append(change)
        # Dropped in bulk, so that the limit costs nothing per write.
        if len(held.history) >= 2 * self._history:
            surplus = len(held.history) - self._history
            held.gone_revision = held.history[surplus - 1].revision
            held.dropped += surplus
            del held.history[:surplus]
        if held.waiters:
            waiters, held.waiters = held.waiters, set()
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
        for listener in self._listeners:
            listener(collection, change)

    def forget(self, collection: str) -> None:
        """Drop the history of a collection, as by a compaction: older watches and tokens become invalid."""
        held = self._of(collection)
        held.gone_revision = self.revision
        held.dropped += len(held.history)
        held.history.clear()
        for key in [key for key in self._snapshots if key[0] == collection]:
            del self._snapshots[key]

    def watch(self, collection: str, since: int) -> "Cursor":
        """Changes after revision ``since``. Raises ``HistoryGone`` if some of them were dropped."""
        held = self._of(collection)
        if since < held.gone_revision:
            raise HistoryGone(since, held.gone_revision + 1)
        low, high = 0, len(held.history)
        while low < high:
            middle = (low + high) // 2
            if held.history[middle].revision <= since:
                low = middle + 1
            else:
                high = middle
        return Cursor(held, held.dropped + low, since)

    def keep_snapshot(self, collection: str, namespace: str | None, records: list[Record]) -> int:
        """Store a list for its ``continue`` tokens; returns the revision that identifies it."""
        key = (collection, namespace, self.revision)
        self._snapshots[key] = _Snapshot(records, self._clock())
        self._snapshots.move_to_end(key)
        while len(self._snapshots) > SNAPSHOTS:
            self._snapshots.popitem(last=False)
        return self.revision

    def snapshot(self, collection: str, namespace: str | None, revision: int) -> list[Record]:
        """A stored list. Raises ``SnapshotGone`` if it is too old or was evicted."""
        snapshot = self._snapshots.get((collection, namespace, revision))
        if snapshot is None or self._clock() - snapshot.made_at > SNAPSHOT_AGE_S:
            self._snapshots.pop((collection, namespace, revision), None)
            raise SnapshotGone(f"no list of {collection} at {revision} is remembered")
        return snapshot.records


class Cursor:
    """A watch: a position in one collection's history, and ``revision``, up to which all changes are seen."""

    __slots__ = ("_held", "_position", "revision")

    def __init__(self, held: _Collection, position: int, revision: int) -> None:
        self._held = held
        self._position = position
        self.revision = revision

    def pending(self, limit: int = 1000) -> list[Change]:
        """Changes not yet seen, at most ``limit``. Raises ``HistoryGone`` if some were missed."""
        start = self._position - self._held.dropped
        if start < 0:
            raise HistoryGone(self.revision, self._held.gone_revision + 1)
        changes = self._held.history[start : start + limit]
        if changes:
            self._position += len(changes)
            self.revision = changes[-1].revision
        return changes

    async def wait(self, timeout_s: float) -> bool:
        """Wait until a change is pending; False if ``timeout_s`` has passed first."""
        if self._position < self._held.dropped + len(self._held.history):
            return True
        waiter = asyncio.get_running_loop().create_future()
        self._held.waiters.add(waiter)
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError:
            return False
        finally:
            self._held.waiters.discard(waiter)
        return True


@contextlib.contextmanager
def all_changes(store: Store) -> Iterator[list[tuple[str, Change]]]:
    """Collect every change of a store while the block runs; for tests and tools in the same process."""
    changes: list[tuple[str, Change]] = []

    def note(collection: str, change: Change) -> None:
        changes.append((collection, change))

    store.listen(note)
    try:
        yield changes
    finally:
        store._listeners.remove(note)  # noqa: SLF001 - the pair of listen() above
