"""The garbage collector and the namespace controller of a real cluster, inside the API server.

Dependents are deleted after their owner; a terminating namespace is emptied; events older than an hour are dropped.

The collector listens to the store and maintains an index of UIDs and of owners, so that its work per write is
O(owners of the object). Deletions are done by one task, after the write that caused them.
"""

import asyncio
import contextlib
import logging
from datetime import datetime, timedelta
from typing import Final, TypeVar

from gpushare_playground.apiserver.errors import ApiError, Object
from gpushare_playground.apiserver.kinds.naming import WallClock
from gpushare_playground.apiserver.kinds.resources import Registry
from gpushare_playground.apiserver.store import DELETED, Change, Store
from gpushare_playground.apiserver.writes.deleting import DeleteOptions, Deleter

_LOG: Final = logging.getLogger("gpushare_playground.apiserver")
EVENT_AGE: Final = timedelta(hours=1)
SWEEP_S: Final = 60.0

_K = TypeVar("_K")
Key = tuple[str, str, str]
"""Collection, namespace, name."""


class GarbageCollector:
    """Follows ``store`` from construction on; active between ``start`` and ``stop``."""

    def __init__(self, store: Store, registry: Registry, deleter: Deleter, now: WallClock) -> None:
        self._store = store
        self._registry = registry
        self._deleter = deleter
        self._now = now
        self._alive: dict[str, Key] = {}
        self._dependents: dict[str, set[Key]] = {}
        # Sets of things to check once: bounded by the number of objects, however often they change.
        self._orphans: dict[Key, None] = {}
        self._namespaces: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        store.listen(self._note)

    def start(self) -> None:
        """Begin to collect."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="garbage collector")

    async def stop(self) -> None:
        """Stop collecting."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    def _note(self, collection: str, change: Change) -> None:
        record = change.record
        metadata = record.obj["metadata"]
        uid, key = metadata["uid"], (collection, record.namespace, record.name)
        if change.previous is not None:
            for owner in change.previous.obj["metadata"].get("ownerReferences") or ():
                held = self._dependents.get(owner["uid"])
                if held is not None:
                    held.discard(key)
                    if not held:
                        del self._dependents[owner["uid"]]
        owners = metadata.get("ownerReferences") or ()
        if change.kind == DELETED:
            self._alive.pop(uid, None)
            for dependent in self._dependents.get(uid, ()):
                self._later(self._orphans, dependent)
            self._look_at_namespace(record.namespace)
            return
        self._alive[uid] = key
        for owner in owners:
            self._dependents.setdefault(owner["uid"], set()).add(key)
            if owner["uid"] not in self._alive:
                self._later(self._orphans, key)
        if "deletionTimestamp" in metadata and collection == "namespaces":
            self._later(self._namespaces, record.name)

    def _later(self, queue: dict[_K, None], key: _K) -> None:
        queue[key] = None
        self._wake.set()

    def _look_at_namespace(self, namespace: str) -> None:
        space = self._store.get("namespaces", "", namespace)
        if space is not None and "deletionTimestamp" in space.obj["metadata"]:
            self._later(self._namespaces, namespace)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        next_sweep = loop.time() + SWEEP_S
        while True:
            with contextlib.suppress(TimeoutError):
                # Not wait_for: Python 3.11's loses a cancellation that comes with the event.
                async with asyncio.timeout_at(next_sweep):
                    await self._wake.wait()
            self._wake.clear()
            try:
                await self._work()
                if loop.time() >= next_sweep:
                    next_sweep = loop.time() + SWEEP_S
                    self._drop_old_events()
            except Exception:
                _LOG.exception("the garbage collector failed; it goes on with the next object")
                self._wake.set()

    async def _work(self) -> None:
        while self._orphans or self._namespaces:
            if self._orphans:
                self._collect(self._orphans.popitem()[0])
            else:
                self._empty(self._namespaces.popitem()[0])
            # Requests take precedence.
            await asyncio.sleep(0)

    def _delete(self, key: Key) -> None:
        resource = self._registry.of_storage(key[0])
        if resource is None:
            self._store.remove(*key)
            return
        with contextlib.suppress(ApiError):
            self._deleter.delete(resource, key[1], key[2], DeleteOptions())

    def _collect(self, key: Key) -> None:
        """Delete a dependent that has no owner left, or remove the absent owners from it."""
        record = self._store.get(*key)
        if record is None:
            return
        owners = record.obj["metadata"].get("ownerReferences") or []
        absent = {owner["uid"] for owner in owners if owner["uid"] not in self._alive}
        if not absent:
            return
        if len(absent) == len({owner["uid"] for owner in owners}):
            if "deletionTimestamp" not in record.obj["metadata"]:
                self._delete(key)
        else:
            self._disown(key, absent)

    def _disown(self, key: Key, uids: set[str]) -> None:
        record = self._store.get(*key)
        if record is None:
            return
        metadata = dict(record.obj["metadata"])
        remaining = [owner for owner in metadata.get("ownerReferences") or () if owner["uid"] not in uids]
        metadata.pop("ownerReferences", None)
        if remaining:
            metadata["ownerReferences"] = remaining
        self._store.put(*key, {**record.obj, "metadata": metadata})

    def _empty(self, namespace: str) -> None:
        """Delete the contents of a terminating namespace, and the namespace itself once it is empty."""
        space = self._store.get("namespaces", "", namespace)
        if space is None or "deletionTimestamp" not in space.obj["metadata"]:
            return
        not_empty = False
        for collection in self._store.collections():
            if collection == "namespaces":
                continue
            for record in self._store.items(collection, namespace):
                if "deletionTimestamp" not in record.obj["metadata"]:
                    self._delete((collection, namespace, record.name))
            not_empty = not_empty or self._store.count(collection, namespace) > 0
        if not not_empty and not space.obj["metadata"].get("finalizers"):
            self._store.remove("namespaces", "", namespace)

    def _drop_old_events(self) -> None:
        oldest = self._now() - EVENT_AGE
        for record in self._store.items("events"):
            if _last_seen(record.obj) < oldest:
                self._store.remove("events", record.namespace, record.name)


def _last_seen(event: Object) -> datetime:
    """When an event was last updated, according to its fields."""
    series = event.get("series") or {}
    for text in (
        series.get("lastObservedTime"),
        event.get("lastTimestamp"),
        event.get("eventTime"),
        event["metadata"]["creationTimestamp"],
    ):
        if isinstance(text, str):
            with contextlib.suppress(ValueError):
                moment = datetime.fromisoformat(text)
                if moment.tzinfo is not None:
                    return moment
    return datetime.fromisoformat(event["metadata"]["creationTimestamp"])
