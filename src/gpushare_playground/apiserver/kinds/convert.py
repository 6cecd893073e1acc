"""One object in another API version of its kind: core/v1 and events.k8s.io/v1 events are one store.

All other kinds are the same in all versions except for ``apiVersion`` (for a CRD: conversion ``None``).
"""

from typing import Final

import orjson

from gpushare_playground.apiserver.errors import Object
from gpushare_playground.apiserver.kinds.resources import Resource
from gpushare_playground.apiserver.store import Record

_EVENT_GROUP: Final = "events.k8s.io"
# core/v1 name → events.k8s.io/v1 name
_EVENT_FIELDS: Final = {
    "involvedObject": "regarding",
    "message": "note",
    "reportingComponent": "reportingController",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
}
# Of a Go type that is always serialized, as ``null`` if unset: kubectl sorts by them.
_EVENT_TIMES: Final = ("firstTimestamp", "lastTimestamp", "eventTime")
_EVENT_FIELDS_BACK: Final = {new: old for old, new in _EVENT_FIELDS.items()}


def _renamed(obj: Object, names: dict[str, str], api_version: str) -> Object:
    converted = {names.get(key, key): value for key, value in obj.items()}
    converted["apiVersion"] = api_version
    converted["kind"] = obj.get("kind", "Event")
    return converted


def is_stored_form(resource: Resource) -> bool:
    """Whether objects are stored in the version of ``resource``."""
    return resource.api_version == resource.storage_version


def to_stored(resource: Resource, obj: Object) -> Object:
    """An object as sent to ``resource``, in the version in which it is stored."""
    if resource.plural == "events":
        event_fields = (
            obj if is_stored_form(resource) else _renamed(obj, _EVENT_FIELDS_BACK, resource.storage_version)
        )
        return event_fields | {name: None for name in _EVENT_TIMES if name not in event_fields}
    if is_stored_form(resource):
        return obj
    return {**obj, "apiVersion": resource.storage_version}


def from_stored(resource: Resource, obj: Object) -> Object:
    """A stored object in the version of ``resource``."""
    if is_stored_form(resource):
        return obj
    if resource.group == _EVENT_GROUP:
        return _renamed(obj, _EVENT_FIELDS, resource.api_version)
    return {**obj, "apiVersion": resource.api_version}


def body_of(resource: Resource, record: Record) -> bytes:
    """The JSON of a stored object in the version of ``resource``; shared if it is the stored version."""
    return record.body if is_stored_form(resource) else orjson.dumps(from_stored(resource, record.obj))
