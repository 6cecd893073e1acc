"""Watches over HTTP: one JSON line per change, bookmarks, initial events, and an ``ERROR`` line on 410.

With a selector a change is reported from the watcher's point of view: an object that begins to match is ``ADDED``,
one that ceases to is ``DELETED``.
"""

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import orjson
from aiohttp import web

from gpushare_playground.apiserver import errors
from gpushare_playground.apiserver.errors import ApiError, Object
from gpushare_playground.apiserver.kinds import convert
from gpushare_playground.apiserver.kinds.resources import Resource
from gpushare_playground.apiserver.kinds.selectors import Predicate
from gpushare_playground.apiserver.reads.lists import Reader, partial_metadata, requested_revision, selection
from gpushare_playground.apiserver.store import (
    ADDED,
    DELETED,
    MODIFIED,
    Change,
    Cursor,
    HistoryGone,
    Record,
    Store,
    event_line,
)
from gpushare_playground.apiserver.wire.requests import Form, is_true, whole_number

BOOKMARK_S: Final = 60.0
_LONGEST_S: Final = (1800, 3600)
_INITIAL_CHUNK: Final = 500
INITIAL_END: Final = "k8s.io/initial-events-end"


@dataclass(frozen=True, slots=True)
class Subscription:
    """One watcher's view: the objects it sees, and their form."""

    resource: Resource
    namespace: str | None
    matches: Predicate | None
    form: Form
    query: Mapping[str, str]
    reader: Reader

    def _body(self, record: Record) -> bytes:
        if self.form is Form.FULL:
            return convert.body_of(self.resource, record)
        obj = convert.from_stored(self.resource, record.obj)
        if self.form is Form.METADATA:
            return orjson.dumps(partial_metadata(obj))
        revision = obj["metadata"]["resourceVersion"]
        table = self.reader.table(self.resource, [obj], self.query, {"resourceVersion": revision})
        return orjson.dumps(table)

    def line(self, change: Change) -> bytes:
        """The event line of a change, empty if this watcher does not see it."""
        record = change.record
        if self.namespace is not None and record.namespace != self.namespace:
            return b""
        kind = change.kind
        if self.matches is not None:
            is_match = kind != DELETED and self.matches(record.obj)
            was_match = change.previous is not None and self.matches(change.previous.obj)
            if not is_match and not was_match:
                return b""
            kind = MODIFIED if is_match and was_match else ADDED if is_match else DELETED
            if kind == DELETED and change.kind != DELETED and change.previous is not None:
                # The watcher receives the last state that it could see, at the revision of the change.
                record = _at_revision(change.previous, record.revision)
        if self.form is Form.FULL and convert.is_stored_form(self.resource) and kind == change.kind:
            return change.line
        return event_line(kind, self._body(record))

    def initial(self, record: Record) -> bytes:
        """The line of an object that existed when the watch began."""
        return event_line(ADDED, self._body(record))

    def bookmark(self, revision: int, *, initial_end: bool = False) -> bytes:
        """A line with the revision up to which all changes were sent."""
        metadata: Object = {"resourceVersion": str(revision)}
        if initial_end:
            metadata["annotations"] = {INITIAL_END: "true"}
        obj: Object
        if self.form is Form.FULL:
            obj = {
                "kind": self.resource.kind,
                "apiVersion": self.resource.api_version,
                "metadata": {"creationTimestamp": None, **metadata},
            }
        elif self.form is Form.METADATA:
            obj = partial_metadata({"metadata": metadata})
        else:
            obj = {
                "kind": "Table",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": metadata,
                "columnDefinitions": None,
                "rows": [{"cells": [], "object": partial_metadata({"metadata": metadata})}],
            }
        return event_line("BOOKMARK", orjson.dumps(obj))


def _at_revision(record: Record, revision: int) -> Record:
    metadata = {**record.obj["metadata"], "resourceVersion": str(revision)}
    return Record(record.namespace, record.name, {**record.obj, "metadata": metadata}, revision)


def error_line(error: ApiError) -> bytes:
    """The line that ends a watch that cannot continue."""
    return event_line("ERROR", orjson.dumps(error.status()))


class Watcher:
    """Serves watches of ``store``. ``bookmark_s`` is the time between bookmarks."""

    def __init__(self, store: Store, reader: Reader, *, bookmark_s: float = BOOKMARK_S) -> None:
        self._store = store
        self._reader = reader
        self._bookmark_s = bookmark_s
        self._streams: set[asyncio.Task[object]] = set()

    def close(self) -> None:
        """End all watches; their clients watch again, elsewhere or later."""
        for stream in self._streams:
            stream.cancel()

    async def serve(
        self,
        request: web.BaseRequest,
        resource: Resource,
        namespace: str | None,
        form: Form,
        query: Mapping[str, str],
    ) -> web.StreamResponse:
        """Stream changes until ``timeoutSeconds`` have passed, the client disconnects, or its position leaves the history."""
        subscription = Subscription(
            resource, namespace, selection(resource, query), form, query, self._reader
        )
        bookmarks = is_true(query, "allowWatchBookmarks")
        timeout_s = whole_number(query, "timeoutSeconds") or random.randint(*_LONGEST_S)  # noqa: S311
        requested = requested_revision(query, self._store)
        wants_initial = _wants_initial(query, requested)
        refusal: ApiError | None = None
        cursor: Cursor | None = None
        initial: list[Record] = []
        try:
            cursor = self._store.watch(
                resource.storage, self._store.revision if wants_initial or requested is None else requested
            )
            if wants_initial:
                initial = self._store.items(resource.storage, namespace)
        except HistoryGone as error:
            refusal = errors.expired(str(error))
        response = web.StreamResponse(
            headers={"Content-Type": "application/json", "Cache-Control": "no-cache, private"}
        )
        response.enable_chunked_encoding()
        await response.prepare(request)
        if cursor is None or refusal is not None:
            await response.write(error_line(refusal or errors.expired("too old resource version")))
            await response.write_eof()
            return response
        stream = asyncio.current_task()
        assert stream is not None
        self._streams.add(stream)
        try:
            await self._send_initial(response, subscription, initial, _marks_end(query), cursor.revision)
            await self._follow(response, subscription, cursor, timeout_s, bookmarks=bookmarks)
        finally:
            self._streams.discard(stream)
        await response.write_eof()
        return response

    async def _send_initial(
        self,
        response: web.StreamResponse,
        subscription: Subscription,
        records: list[Record],
        mark_end: bool,  # noqa: FBT001
        revision: int,
    ) -> None:
        matches = subscription.matches
        for start in range(0, len(records), _INITIAL_CHUNK):
            lines = [
                subscription.initial(record)
                for record in records[start : start + _INITIAL_CHUNK]
                if matches is None or matches(record.obj)
            ]
            if lines:
                await response.write(b"".join(lines))
        if mark_end:
            await response.write(subscription.bookmark(revision, initial_end=True))

    async def _follow(
        self,
        response: web.StreamResponse,
        subscription: Subscription,
        cursor: Cursor,
        timeout_s: float,
        *,
        bookmarks: bool,
    ) -> None:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        next_bookmark = loop.time() + self._bookmark_s
        while True:
            now = loop.time()
            # Read before the changes: nothing up to this revision can be missing once pending() is empty.
            revision = self._store.revision
            try:
                changes = cursor.pending()
            except HistoryGone as error:
                await response.write(error_line(errors.expired(str(error))))
                return
            if changes:
                lines = b"".join([subscription.line(change) for change in changes])
                if lines:
                    await response.write(lines)
                continue
            cursor.revision = max(cursor.revision, revision)
            if bookmarks and (now >= next_bookmark or now >= end_s):
                await response.write(subscription.bookmark(cursor.revision))
                next_bookmark = now + self._bookmark_s
            if now >= end_s:
                return
            await cursor.wait(min(end_s, next_bookmark) - now if bookmarks else end_s - now)


def _wants_initial(query: Mapping[str, str], requested: int | None) -> bool:
    if "sendInitialEvents" in query:
        if query.get("resourceVersionMatch") != "NotOlderThan":
            field_errors = [
                errors.forbidden_field(
                    "resourceVersionMatch",
                    "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
                )
            ]
            raise errors.invalid("ListOptions", "meta.k8s.io", "", field_errors)
        return is_true(query, "sendInitialEvents")
    if "resourceVersionMatch" in query:
        field_errors = [
            errors.forbidden_field(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            )
        ]
        raise errors.invalid("ListOptions", "meta.k8s.io", "", field_errors)
    return requested is None or requested == 0


def _marks_end(query: Mapping[str, str]) -> bool:
    return is_true(query, "sendInitialEvents") and is_true(query, "allowWatchBookmarks")
