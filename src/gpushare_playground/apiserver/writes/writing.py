"""Creating, replacing and patching objects: the steps of the API server between a request and the store.

Every public method is synchronous and therefore one transaction: it reads, decides and writes without
yielding. The input is a decoded body, the result is the stored ``Record`` (for a dry
run one that was not stored) and warnings for the client.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from gpushare_playground.apiserver import errors
from gpushare_playground.apiserver.errors import Object
from gpushare_playground.apiserver.kinds import convert
from gpushare_playground.apiserver.kinds.custom_validation import (
    check_custom,
    first_custom_status,
    settle_custom,
)
from gpushare_playground.apiserver.kinds.naming import WallClock, generated_name, new_uid, timestamp
from gpushare_playground.apiserver.kinds.resources import Registry, Resource
from gpushare_playground.apiserver.store import Record, Store
from gpushare_playground.apiserver.wire.fields import FieldTypeError, settle
from gpushare_playground.apiserver.writes.admission import Admission, Review
from gpushare_playground.apiserver.writes.defaults import apply_defaults, first_status, name_job_pods
from gpushare_playground.apiserver.writes.priorities import admit_priority
from gpushare_playground.apiserver.writes.resizing import check_resize, resized
from gpushare_playground.apiserver.writes.resource_quotas import ResourceQuotas
from gpushare_playground.apiserver.writes.validation import check_new, check_update

_NAME_TRIES: Final = 8
# These kinds reject an update that does not name the version that it is based on.
_NEEDS_REVISION: Final = frozenset(("leases.coordination.k8s.io", "poddisruptionbudgets.policy"))
_SERVER_FIELDS: Final = (
    "uid",
    "creationTimestamp",
    "generation",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "selfLink",
    "generateName",
    "managedFields",
)
IGNORE, WARN, STRICT = "Ignore", "Warn", "Strict"


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How to write; ``validation`` is one of Ignore, Warn, Strict."""

    user: str = ""
    dry_run: bool = False
    validation: str = WARN


@dataclass(slots=True)
class Outcome:
    """The result of a write: the object's record, whether it is new, and warnings for the client."""

    record: Record
    created: bool = False
    warnings: list[str] = field(default_factory=list)


Transform = Callable[[Object], Object]
"""From the current object (in the request's API version) to the requested one."""


class Writer:
    """Writes to ``store`` what ``registry`` allows, through ``admission``."""

    def __init__(self, store: Store, registry: Registry, admission: Admission, now: WallClock) -> None:
        self._store = store
        self._registry = registry
        self._admission = admission
        self._now = now
        self._quotas = ResourceQuotas(store)

    def take_in(self, resource: Resource, body: Object, validation: str) -> tuple[Object, list[str]]:
        """A client's object in settled form, with warnings. Raises ``ApiError`` 400 if it is invalid."""
        kind = f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}'
        if body.get("kind", resource.kind) != resource.kind:
            raise errors.bad_request(
                f"{kind}: the object provided is a {body.get('kind')!r}, expected {resource.kind!r}"
            )
        if body.get("apiVersion", resource.api_version) != resource.api_version:
            raise errors.bad_request(
                f"the API version in the data ({body.get('apiVersion')}) does not match"
                f" the expected API version ({resource.api_version})"
            )
        try:
            # Kinds without a table keep their parts unchanged; these must not be shared with the store.
            fresh = body if resource.schema is not None else copy.deepcopy(body)
            settled, unknown = settle(resource.schema, fresh)
        except FieldTypeError as error:
            raise errors.bad_request(f"{kind}: {error}") from None
        settled["kind"], settled["apiVersion"] = resource.kind, resource.api_version
        if not isinstance(settled.setdefault("metadata", {}), dict):
            raise errors.bad_request(f"{kind}: metadata must be an object")
        if resource.custom:
            unknown += settle_custom(resource, settled)
        if unknown and validation == STRICT:
            listed = ", ".join(f'unknown field "{path}"' for path in unknown)
            raise errors.bad_request(f"{kind}: strict decoding error: {listed}")
        warnings = [f'unknown field "{path}"' for path in unknown] if validation == WARN else []
        return convert.to_stored(resource, settled), warnings

    def create(
        self,
        resource: Resource,
        namespace: str,
        body: Object,
        options: WriteOptions,
    ) -> Outcome:
        """Create an object.

        Raises ``ApiError``: 403 above a quota, 404 without the namespace, 409 if it exists, 422 if it is invalid.
        """
        obj, warnings = self.take_in(resource, body, options.validation)
        metadata = obj["metadata"]
        space = self._namespace_of(resource, namespace, metadata)
        generated = not metadata.get("name") and bool(metadata.get("generateName"))
        if generated:
            metadata["name"] = self._free_name(resource, namespace, metadata["generateName"])
        if metadata.get("resourceVersion"):
            raise errors.bad_request("resourceVersion should not be set on objects to be created")
        apply_defaults(resource.storage, obj)
        review = Review(resource, space, obj, options.user)
        self._admission.mutate(review)
        if resource.storage == "pods":
            admit_priority(self._store, obj)
        self._start(resource, namespace, obj)
        field_errors = check_new(resource, obj) + check_custom(resource, obj)
        if field_errors:
            raise errors.invalid(resource.kind, resource.group, metadata.get("name", ""), field_errors)
        self._admission.validate(review)
        name = metadata["name"]
        if self._store.get(resource.storage, namespace, name) is not None:
            raise errors.already_exists(resource.plural, resource.group, name)
        if resource.storage == "pods":
            self._quotas.admit(obj)
        return Outcome(
            self._store_record(resource, namespace, name, obj, options), True, warnings + review.warnings
        )

    def _namespace_of(self, resource: Resource, namespace: str, metadata: Object) -> dict[str, str]:
        """Labels of the namespace of a new object; checks that it accepts new objects."""
        if not resource.namespaced:
            metadata.pop("namespace", None)
            return {}
        if metadata.get("namespace", namespace) != namespace:
            raise errors.bad_request(
                "the namespace of the provided object does not match the namespace sent on the request"
            )
        metadata["namespace"] = namespace
        space = self._store.get("namespaces", "", namespace)
        if space is None:
            raise errors.not_found("namespaces", "", namespace)
        if space.obj["metadata"].get("deletionTimestamp"):
            refusal = errors.forbidden(
                resource.plural,
                resource.group,
                metadata.get("name", ""),
                f"unable to create new content in namespace {namespace} because it is being terminated",
            )
            cause = {
                "reason": "NamespaceTerminating",
                "message": f"namespace {namespace} is being terminated",
            }
            refusal.details = {
                **(refusal.details or {}),
                "causes": [{**cause, "field": "metadata.namespace"}],
            }
            raise refusal
        labels: dict[str, str] = space.obj["metadata"].get("labels") or {}
        return labels

    def _free_name(self, resource: Resource, namespace: str, prefix: str) -> str:
        name = generated_name(prefix)
        for _ in range(_NAME_TRIES):
            if self._store.get(resource.storage, namespace, name) is None:
                break
            name = generated_name(prefix)
        return name

    def _start(self, resource: Resource, namespace: str, obj: Object) -> None:
        """Set the fields of a new object that only the server decides."""
        metadata = obj["metadata"]
        for name in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "managedFields"):
            metadata.pop(name, None)
        metadata["uid"] = new_uid()
        metadata["creationTimestamp"] = timestamp(self._now())
        metadata.pop("generation", None)
        if resource.generation:
            metadata["generation"] = 1
        if resource.storage == "jobs.batch" and metadata.get("name"):
            name_job_pods(obj)
        if resource.has_status:
            if resource.custom:
                obj.pop("status", None)
                status = first_custom_status(resource)
            else:
                status = first_status(resource.storage, obj)
            if status is not None:
                obj["status"] = status

    def _store_record(
        self, resource: Resource, namespace: str, name: str, obj: Object, options: WriteOptions
    ) -> Record:
        if options.dry_run:
            old = self._store.get(resource.storage, namespace, name)
            if old is not None:
                obj["metadata"]["resourceVersion"] = old.obj["metadata"]["resourceVersion"]
            return Record(namespace, name, obj, 0)
        return self._store.put(resource.storage, namespace, name, obj)

    def present(self, resource: Resource, namespace: str, name: str) -> Record:
        """The existing object. Raises ``ApiError`` 404."""
        record = self._store.get(resource.storage, namespace, name)
        if record is None:
            raise errors.not_found(resource.plural, resource.group, name)
        return record

    def replace(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        body: Object,
        options: WriteOptions,
        subresource: str = "",
    ) -> Outcome:
        """Replace an object, its ``status``, or (``resize``) its requests. Raises ``ApiError``: 404, 409 on a stale version, 422."""
        old = self.present(resource, namespace, name)
        obj, warnings = self.take_in(resource, body, options.validation)
        return self._update(resource, old, obj, options, subresource, warnings, patched=False)

    def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        transform: Transform,
        options: WriteOptions,
        subresource: str = "",
    ) -> Outcome:
        """Replace an object by the result of ``transform``; otherwise as ``replace``."""
        old = self.present(resource, namespace, name)
        wanted = transform(convert.from_stored(resource, old.obj))
        obj, warnings = self.take_in(resource, wanted, options.validation)
        return self._update(resource, old, obj, options, subresource, warnings, patched=True)

    def _update(
        self,
        resource: Resource,
        old: Record,
        obj: Object,
        options: WriteOptions,
        subresource: str,
        warnings: list[str],
        *,
        patched: bool,
    ) -> Outcome:
        self._check_identity(resource, old, obj["metadata"], patched=patched)
        obj = self._merge_parts(resource, old.obj, obj, subresource)
        metadata, before = obj["metadata"], old.obj["metadata"]
        if subresource != "status":
            apply_defaults(resource.storage, obj)
            check = (
                check_resize(old.obj, obj)
                if subresource == "resize"
                else check_update(resource, old.obj, obj)
            )
            field_errors = check + check_new(resource, obj)
            field_errors += check_custom(resource, obj)
            field_errors += self._check_finalizers(before, metadata)
            if field_errors:
                raise errors.invalid(resource.kind, resource.group, old.name, field_errors)
        if resource.generation and _without(obj, "metadata", "status") != _without(
            old.obj, "metadata", "status"
        ):
            metadata["generation"] = before.get("generation", 0) + 1
        review = Review(resource, {}, obj, options.user, old.obj, subresource, warnings)
        self._admission.validate(review)
        metadata["resourceVersion"] = before["resourceVersion"]
        if obj == old.obj:
            return Outcome(old, warnings=warnings)
        record = self._store_record(resource, old.namespace, old.name, obj, options)
        if not options.dry_run:
            self._finish_deletion(resource, record)
        return Outcome(record, warnings=warnings)

    def admit_binding(self, resource: Resource, binding: Object, user: str) -> None:
        """Call admission for a Binding of a pod. Raises ``ApiError``."""
        self._admission.validate(Review(resource, {}, binding, user, subresource="binding"))

    def _check_identity(self, resource: Resource, old: Record, metadata: Object, *, patched: bool) -> None:
        before = old.obj["metadata"]
        if metadata.get("name", old.name) != old.name:
            raise errors.bad_request(
                f"the name of the object ({metadata['name']}) does not match the name on the URL ({old.name})"
            )
        if resource.namespaced and metadata.get("namespace", old.namespace) != old.namespace:
            raise errors.bad_request(
                f"the namespace of the object ({metadata['namespace']}) does not match"
                f" the namespace on the URL ({old.namespace})"
            )
        uid = metadata.get("uid") or before["uid"]
        if uid != before["uid"]:
            reason = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {before['uid']}"
            raise errors.conflict(resource.plural, resource.group, old.name, reason)
        base_revision = metadata.get("resourceVersion", "")
        if base_revision in ("", "0"):
            if not patched and (resource.custom or resource.storage in _NEEDS_REVISION):
                field_errors = [
                    errors.invalid_value("metadata.resourceVersion", 0, "must be specified for an update")
                ]
                raise errors.invalid(resource.kind, resource.group, old.name, field_errors)
        elif base_revision != before["resourceVersion"]:
            raise errors.conflict(resource.plural, resource.group, old.name, errors.MODIFIED)

    def _merge_parts(self, resource: Resource, old: Object, new: Object, subresource: str) -> Object:
        """The parts that this request may write from ``new``, the others from ``old``."""
        if subresource == "resize":
            return {**resized(old, new), "metadata": dict(old["metadata"])}
        if subresource == "status":
            metadata = old["metadata"] if resource.custom else new["metadata"]
            merged = {key: value for key, value in old.items() if key != "status"}
            if "status" in new:
                merged["status"] = new["status"]
        else:
            metadata, merged = new["metadata"], dict(new)
            if resource.has_status:
                merged.pop("status", None)
                if "status" in old:
                    merged["status"] = old["status"]
        before = old["metadata"]
        metadata = dict(metadata)
        metadata["name"] = before["name"]
        if resource.namespaced:
            metadata["namespace"] = before["namespace"]
        for name in _SERVER_FIELDS:
            metadata.pop(name, None)
            if name in before:
                metadata[name] = before[name]
        if subresource == "status":
            for name in ("ownerReferences", "finalizers"):
                metadata.pop(name, None)
                if name in before:
                    metadata[name] = before[name]
        merged["metadata"] = metadata
        return merged

    @staticmethod
    def _check_finalizers(before: Object, metadata: Object) -> list[errors.FieldError]:
        if not before.get("deletionTimestamp"):
            return []
        added = [
            finalizer
            for finalizer in metadata.get("finalizers") or ()
            if finalizer not in (before.get("finalizers") or ())
        ]
        if not added:
            return []
        detail = (
            "no new finalizers can be added if the object is being deleted, found new finalizers"
            f" []string{{{', '.join(chr(34) + finalizer + chr(34) for finalizer in added)}}}"
        )
        return [errors.forbidden_field("metadata.finalizers", detail)]

    def _finish_deletion(self, resource: Resource, record: Record) -> None:
        """An object that only its finalizers kept is removed with the last of them."""
        metadata = record.obj["metadata"]
        if not metadata.get("deletionTimestamp") or metadata.get("finalizers"):
            return
        if metadata.get("deletionGracePeriodSeconds"):
            return
        if resource.storage == "namespaces" and (record.obj.get("spec") or {}).get("finalizers"):
            return
        self._store.remove(resource.storage, record.namespace, record.name)


def _without(obj: Object, *names: str) -> dict[str, Any]:
    return {key: value for key, value in obj.items() if key not in names}


def copy_of(record: Record) -> Object:
    """A copy of an object that may be changed freely."""
    return copy.deepcopy(record.obj)
