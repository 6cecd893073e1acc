"""Deleting objects: preconditions, grace periods of pods, finalizers.

A pod on a node is only marked; its kubelet ends it and deletes it again with a grace period of 0. Objects with
finalizers remain, marked, until the last finalizer is removed. Dependents are deleted in the background
(``garbage.py``); ``--cascade=foreground`` and ``orphan`` are rejected.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from gpushare_playground.apiserver import errors
from gpushare_playground.apiserver.errors import Object
from gpushare_playground.apiserver.kinds.naming import WallClock, timestamp
from gpushare_playground.apiserver.kinds.resources import Resource
from gpushare_playground.apiserver.store import Record, Store
from gpushare_playground.apiserver.wire.fields import FieldTypeError, settle

_ENDED: Final = ("Succeeded", "Failed")
DEFAULT_GRACE_S: Final = 30


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """How to delete. ``grace_s`` None: that of the pod; ``uid`` and ``revision`` are preconditions."""

    grace_s: int | None = None
    uid: str | None = None
    revision: str | None = None
    dry_run: bool = False

    @classmethod
    def of(cls, body: Object, query: dict[str, str]) -> "DeleteOptions":
        """From the request's ``DeleteOptions`` body and its query; the body takes precedence. Raises ``ApiError`` 400."""
        try:
            options, _ = settle("DeleteOptions", body)
        except FieldTypeError as error:
            raise errors.bad_request(str(error)) from None
        grace = options.get("gracePeriodSeconds")
        if grace is None and query.get("gracePeriodSeconds"):
            text = query["gracePeriodSeconds"]
            if not text.lstrip("-").isdecimal():
                raise errors.bad_request(f"gracePeriodSeconds must be a whole number, got {text[:20]!r}")
            grace = int(text)
        policy = options.get("propagationPolicy") or query.get("propagationPolicy")
        if policy not in (None, "Background"):
            field_errors = [errors.unsupported("propagationPolicy", policy, ("Background",))]
            raise errors.invalid("DeleteOptions", "meta.k8s.io", "", field_errors)
        conditions = options.get("preconditions") or {}
        return cls(
            grace_s=grace,
            uid=conditions.get("uid"),
            revision=conditions.get("resourceVersion"),
            dry_run=bool(options.get("dryRun")) or query.get("dryRun") == "All",
        )


@dataclass(frozen=True, slots=True)
class Deleted:
    """The result of a deletion: the last or current state, and whether the object was removed immediately."""

    record: Record
    gone: bool


def _grace_s(resource: Resource, obj: Object, options: DeleteOptions) -> int:
    if resource.storage != "pods":
        return 0
    spec = obj.get("spec") or {}
    if not spec.get("nodeName") or (obj.get("status") or {}).get("phase") in _ENDED:
        return 0
    if options.grace_s is not None:
        return options.grace_s if options.grace_s >= 0 else 1
    grace: int = spec.get("terminationGracePeriodSeconds", DEFAULT_GRACE_S)
    return grace


class Deleter:
    """Deletes objects from ``store``."""

    def __init__(self, store: Store, now: WallClock) -> None:
        self._store = store
        self._now = now

    def delete(self, resource: Resource, namespace: str, name: str, options: DeleteOptions) -> Deleted:
        """Delete one object. Raises ``ApiError``: 404, 409 if a precondition fails."""
        record = self._store.get(resource.storage, namespace, name)
        if record is None:
            raise errors.not_found(resource.plural, resource.group, name)
        self._check_preconditions(resource, record, options)
        if resource.storage == "namespaces":
            return self._delete_namespace(resource, record, options)
        metadata = record.obj["metadata"]
        grace_s = _grace_s(resource, record.obj, options)
        if grace_s == 0 and not metadata.get("finalizers"):
            if not options.dry_run:
                record = self._store.remove(resource.storage, namespace, name) or record
            return Deleted(record, gone=True)
        if "deletionTimestamp" in metadata and grace_s >= metadata.get("deletionGracePeriodSeconds", 0):
            return Deleted(record, gone=False)
        return Deleted(self._mark(resource, record, grace_s, options), gone=False)

    @staticmethod
    def _check_preconditions(resource: Resource, record: Record, options: DeleteOptions) -> None:
        metadata = record.obj["metadata"]
        for word, required, present in (
            ("UID", options.uid, metadata["uid"]),
            ("ResourceVersion", options.revision, metadata["resourceVersion"]),
        ):
            if required is not None and required != present:
                reason = f"Precondition failed: {word} in precondition: {required}, {word} in object meta: {present}"
                raise errors.conflict(resource.plural, resource.group, record.name, reason)

    def _mark(self, resource: Resource, record: Record, grace_s: int, options: DeleteOptions) -> Record:
        metadata = dict(record.obj["metadata"])
        if "deletionTimestamp" not in metadata and "generation" in metadata:
            metadata["generation"] += 1
        metadata["deletionTimestamp"] = timestamp(self._now() + timedelta(seconds=grace_s))
        metadata["deletionGracePeriodSeconds"] = grace_s
        obj = {**record.obj, "metadata": metadata}
        if options.dry_run:
            return Record(record.namespace, record.name, obj, record.revision)
        return self._store.put(resource.storage, record.namespace, record.name, obj)

    def _delete_namespace(self, resource: Resource, record: Record, options: DeleteOptions) -> Deleted:
        """A namespace is only marked; the garbage collector empties it and removes its finalizer."""
        if record.name in ("default", "kube-system", "kube-public"):
            raise errors.forbidden("namespaces", "", record.name, "this namespace may not be deleted")
        if "deletionTimestamp" in record.obj["metadata"]:
            return Deleted(record, gone=False)
        metadata = {**record.obj["metadata"], "deletionTimestamp": timestamp(self._now())}
        status = {**(record.obj.get("status") or {}), "phase": "Terminating"}
        obj = {**record.obj, "metadata": metadata, "status": status}
        if not options.dry_run:
            record = self._store.put(resource.storage, "", record.name, obj)
        return Deleted(record, gone=False)
