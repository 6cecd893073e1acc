"""Reading one object or many: selectors, pages, resource versions, and the three forms of a response."""

import base64
import binascii
from collections.abc import Mapping
from typing import Final

import orjson

from gpushare_playground.apiserver import errors
from gpushare_playground.apiserver.errors import Object
from gpushare_playground.apiserver.kinds import convert
from gpushare_playground.apiserver.kinds.naming import WallClock
from gpushare_playground.apiserver.kinds.resources import Resource
from gpushare_playground.apiserver.kinds.selectors import Predicate, predicate
from gpushare_playground.apiserver.reads.tables import table_of
from gpushare_playground.apiserver.store import Record, SnapshotGone, Store
from gpushare_playground.apiserver.wire.requests import Form, whole_number

_TOO_OLD: Final = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list"
    " without the continue parameter."
)


def selection(resource: Resource, query: Mapping[str, str]) -> Predicate | None:
    """The test for a request's label and field selectors, None without selectors."""
    return predicate(
        query.get("labelSelector", ""), query.get("fieldSelector", ""), resource.storage, resource.selectable
    )


def _page_token(revision: int, start: int) -> str:
    return base64.urlsafe_b64encode(orjson.dumps({"rv": revision, "start": start})).decode()


def _read_token(token: str) -> tuple[int, int]:
    try:
        decoded = orjson.loads(base64.urlsafe_b64decode(token))
        return int(decoded["rv"]), int(decoded["start"])
    except (binascii.Error, ValueError, KeyError, TypeError):
        raise errors.bad_request("continue key is not valid") from None


def requested_revision(query: Mapping[str, str], store: Store) -> int | None:
    """``resourceVersion`` of the query. Raises ``ApiError``: 400 if malformed, 504 if in the future."""
    revision = whole_number(query, "resourceVersion")
    if revision is not None and revision > store.revision:
        raise errors.too_large_revision(revision, store.revision)
    return revision


class Reader:
    """Serves reads from ``store``; all methods return JSON."""

    def __init__(self, store: Store, now: WallClock) -> None:
        self._store = store
        self._now = now

    def one(self, resource: Resource, record: Record, form: Form, query: Mapping[str, str]) -> bytes:
        """One object in the requested form."""
        if form is Form.FULL:
            return convert.body_of(resource, record)
        obj = convert.from_stored(resource, record.obj)
        if form is Form.METADATA:
            return orjson.dumps(partial_metadata(obj))
        revision = obj["metadata"].get("resourceVersion", "")
        return orjson.dumps(self.table(resource, [obj], query, {"resourceVersion": revision}))

    def table(
        self, resource: Resource, objs: list[Object], query: Mapping[str, str], metadata: Object
    ) -> Object:
        """Objects as a ``meta.k8s.io/v1`` ``Table``."""
        return table_of(resource, objs, metadata, self._now(), query.get("includeObject", "Metadata"))

    def many(self, resource: Resource, namespace: str | None, form: Form, query: Mapping[str, str]) -> bytes:
        """The list of a namespace (None: of all). Raises ``ApiError`` 410 for a token that is too old."""
        matches = selection(resource, query)
        records, metadata = self._page(resource, namespace, query, matches)
        if form is Form.TABLE:
            objs = [convert.from_stored(resource, record.obj) for record in records]
            return orjson.dumps(self.table(resource, objs, query, metadata))
        if form is Form.METADATA:
            return orjson.dumps(
                {
                    "kind": "PartialObjectMetadataList",
                    "apiVersion": "meta.k8s.io/v1",
                    "metadata": metadata,
                    "items": [partial_metadata(convert.from_stored(resource, one.obj)) for one in records],
                }
            )
        head = {"kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": metadata}
        items = b",".join([convert.body_of(resource, record) for record in records])
        return b'%s,"items":[%s]}' % (orjson.dumps(head)[:-1], items)

    def _page(
        self, resource: Resource, namespace: str | None, query: Mapping[str, str], matches: Predicate | None
    ) -> tuple[list[Record], Object]:
        limit = whole_number(query, "limit") or 0
        storage, token = resource.storage, query.get("continue", "")
        start = 0
        if token:
            if query.get("resourceVersion", "0") not in ("", "0"):
                raise errors.bad_request("specifying resource version is not allowed when using continue")
            revision, start = _read_token(token)
            try:
                records = self._store.snapshot(storage, namespace, revision)
            except SnapshotGone:
                raise errors.expired(_TOO_OLD) from None
        else:
            requested = requested_revision(query, self._store)
            records, revision = self._store.items(storage, namespace), self._store.revision
            if query.get("resourceVersionMatch") == "Exact" and requested != revision:
                raise errors.expired(f"The resourceVersion for the provided list is too old: {requested}")
        if not limit:
            kept = records[start:] if start else records
            if matches is not None:
                kept = [record for record in kept if matches(record.obj)]
            return kept, {"resourceVersion": str(revision)}
        page: list[Record] = []
        position = start
        while position < len(records) and len(page) < limit:
            record = records[position]
            position += 1
            if matches is None or matches(record.obj):
                page.append(record)
        metadata: Object = {"resourceVersion": str(revision)}
        if position < len(records):
            if not token:
                revision = self._store.keep_snapshot(storage, namespace, records)
            metadata["continue"] = _page_token(revision, position)
            if matches is None:
                metadata["remainingItemCount"] = len(records) - position
        return page, metadata


def partial_metadata(obj: Object) -> Object:
    """An object reduced to its metadata."""
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}
