"""Keeps a handler's view of a collection in sync with the server.

Objects arrive as JSON bytes; only the record that ``decode`` makes of each is stored. After a gap in the watch, the new list is compared
with the stored records, so that missed deletions are reported and unchanged objects are not. All removals of a new list come before its
upserts, without yielding to the event loop, so that a handler that counts never counts both an object and its successor.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from gpushare.kube.backoff import Backoff
from gpushare.kube.client.listing import PAGE_SIZE, Page
from gpushare.kube.client.session import Session
from gpushare.kube.clock import SYSTEM_CLOCK, Clock
from gpushare.kube.watch.reflector import (
    IDLE_TIMEOUT_S,
    Event,
    Following,
    Head,
    ListBegins,
    ListEnds,
    Step,
    Trouble,
    follow,
    read_head,
)
from gpushare.process.log_setup import about

logger = logging.getLogger(__name__)

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class Handler(Protocol[T_contra]):
    """Receives every change, in order, one at a time, in the event loop; must not block.

    An exception of the handler ends ``Informer.run``, because a view that missed a change would stay wrong.
    """

    def synced(self) -> None:
        """The first list is complete. Called once."""

    def upsert(self, item: T_contra) -> None:
        """``item`` is new or changed."""

    def remove(self, key: str, last: T_contra) -> None:
        """The object is gone, or no longer selected; ``last`` is the last value passed to ``upsert``."""


class InformerFigures(msgspec.Struct, frozen=True):
    """An informer's health. Times are monotonic seconds; ``last_error`` is empty if all is well."""

    synced: bool
    objects: int
    events: int
    relists: int
    reconnects: int
    unreadable: int
    last_received_s: float | None
    last_error: str


class _Held(msgspec.Struct, gc=False):
    key: str
    uid: str
    version: int
    item: Any


class Informer(Generic[T]):
    """Follows the collection at ``path`` (``/api/v1/pods``) for a handler.

    ``decode`` returns key and record for an object's JSON, or ``None`` for an irrelevant object. If it raises ``ValueError``
    (``msgspec.DecodeError`` is one) or ``RecursionError``, the object is skipped and its previous record stays. ``params`` restricts the
    collection (``fieldSelector``, ``labelSelector``). ``may_be_absent``: if the server does not know the kind, the collection is empty, and
    the list is retried every few seconds. Memory: one record per object. A list of n objects costs O(n), an event O(1).
    """

    def __init__(
        self,
        session: Session,
        path: str,
        decode: Callable[[bytes], tuple[str, T] | None],
        handler: Handler[T],
        *,
        params: Mapping[str, str] | None = None,
        page_size: int = PAGE_SIZE,
        idle_timeout_s: float = IDLE_TIMEOUT_S,
        clock: Clock = SYSTEM_CLOCK,
        backoff: Backoff | None = None,
        may_be_absent: bool = False,
    ) -> None:
        self._path = path
        self._decode = decode
        self._handler = handler
        self._clock = clock
        self._following = Following(
            session, path, dict(params or {}), page_size, idle_timeout_s, clock, backoff or Backoff()
        )
        self._following.may_be_absent = may_be_absent
        self._held: dict[str, _Held] = {}
        self._fresh: dict[str, _Held] | None = None
        self._events = self._lists = self._reconnects = self._unreadable = 0
        self._last_received_s: float | None = None
        self._last_error = ""
        self.synced = asyncio.Event()
        self._relist_requested = asyncio.Event()
        self._relists_pending: list[asyncio.Future[None]] = []
        self._relists_running: list[asyncio.Future[None]] = []

    @property
    def figures(self) -> InformerFigures:
        """The current health."""
        return InformerFigures(
            self.synced.is_set(),
            len(self._held),
            self._events,
            max(0, self._lists - 1),
            self._reconnects,
            self._unreadable,
            self._last_received_s,
            self._last_error,
        )

    async def run(self) -> None:
        """Follow until cancelled; raises only what the handler raises."""
        try:
            while True:
                await self._follow_until_relist()
                self._relists_running += self._relists_pending
                self._relists_pending = []
        finally:
            self._relists_running += self._relists_pending
            self._finish_relists()

    async def _follow_until_relist(self) -> None:
        tasks = [asyncio.create_task(self._follow()), asyncio.create_task(self._relist_requested.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[0].done():
                await tasks[0]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._relist_requested.clear()

    async def relist(self) -> None:
        """Return once a list that began after the call is complete: everything true at the call is known then.

        It aborts the current list or watch. It waits while the server does not answer, and also returns when ``run`` ends.
        """
        listed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._relists_pending.append(listed)
        self._relist_requested.set()
        await listed

    async def _follow(self) -> None:
        async with aclosing(follow(self._following)) as steps:
            async for step in steps:
                self._take(step)

    def _take(self, step: Step) -> None:
        if isinstance(step, Trouble):
            self._note_trouble(step)
            return
        if isinstance(step, ListBegins):
            # Without earlier objects there is nothing to compare: pages go straight through.
            self._fresh = {} if self._held else None
            return
        self._last_received_s = self._clock.monotonic()
        self._last_error = ""
        if isinstance(step, Event):
            self._take_event(step)
        elif isinstance(step, Page):
            for raw in step.items:
                self._take_listed(raw)
        elif isinstance(step, ListEnds):
            self._end_list()

    def _note_trouble(self, trouble: Trouble) -> None:
        self._last_error = str(trouble.error)
        self._reconnects += 1
        logger.warning(
            "%s; %s in %.1f s",
            trouble.error,
            "listing again" if trouble.relist else "resuming",
            trouble.wait_s,
        )

    def _take_event(self, event: Event) -> None:
        if event.type == "BOOKMARK":
            return
        self._events += 1
        head = event.head
        name = _name(head)
        held = self._held.get(name)
        if held is not None and held.uid == head.uid and 0 < _version(head) <= held.version:
            return
        if event.type == "DELETED":
            # A deletion with another UID is that of a predecessor, already reported when this one appeared.
            if held is not None and held.uid == head.uid:
                self._remove(name, held)
            return
        self._put(name, held, self._read(name, head, event.raw, held))

    def _take_listed(self, raw: msgspec.Raw) -> None:
        try:
            head = read_head(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._note_unreadable("an item of the list", "", error)
            return
        name = _name(head)
        held = self._held.get(name)
        if held is not None and held.uid == head.uid and held.version == _version(head) != 0:
            record: _Held | None = held
        else:
            record = self._read(name, head, raw, held)
        if self._fresh is None:
            self._put(name, held, record)
        elif record is not None:
            self._fresh[name] = record

    def _end_list(self) -> None:
        fresh, self._fresh = self._fresh, None
        if fresh is not None:
            for name, held in list(self._held.items()):
                record = fresh.get(name)
                if record is None or _is_other(held, record):
                    self._remove(name, held)
            for name, record in fresh.items():
                self._put(name, self._held.get(name), record)
        self._lists += 1
        self._finish_relists()
        if not self.synced.is_set():
            self._handler.synced()
            self.synced.set()

    def _finish_relists(self) -> None:
        for listed in self._relists_running:
            if not listed.done():
                listed.set_result(None)
        self._relists_running.clear()

    def _read(self, name: str, head: Head, raw: msgspec.Raw, held: _Held | None) -> _Held | None:
        try:
            decoded = self._decode(bytes(raw))
        except (ValueError, RecursionError) as error:
            self._note_unreadable(name, head.uid, error)
            return held if held is not None and held.uid == head.uid else None
        if decoded is None:
            return None
        key, item = decoded
        return _Held(name if key == name else key, head.uid, _version(head), item)

    def _note_unreadable(self, name: str, uid: str, error: Exception) -> None:
        self._unreadable += 1
        logger.error(
            "%s: %s cannot be read and is ignored (%s)",
            self._path,
            name,
            error,
            extra=self._about(name, uid),
        )

    def _about(self, name: str, uid: str) -> dict[str, Any] | None:
        """The log line's subject; ``uid`` is empty if the object's metadata could not be read."""
        kind = self._path.rpartition("/")[2] if uid else ""
        return about(pod=name, uid=uid) if kind == "pods" else about(node=name) if kind == "nodes" else None

    def _put(self, name: str, held: _Held | None, record: _Held | None) -> None:
        if record is held:
            return
        if held is not None and (record is None or _is_other(held, record)):
            self._remove(name, held)
        if record is not None:
            self._held[name] = record
            self._handler.upsert(record.item)

    def _remove(self, name: str, held: _Held) -> None:
        del self._held[name]
        self._handler.remove(held.key, held.item)


def _is_other(held: _Held, record: _Held) -> bool:
    return held.uid != record.uid or held.key != record.key


def _name(head: Head) -> str:
    return f"{head.namespace}/{head.name}" if head.namespace else head.name


def _version(head: Head) -> int:
    """The resource version as a number; 0, which is never newer or equal, for an invalid one."""
    return int(head.resource_version) if head.resource_version.isdigit() else 0
