"""Server-side apply: an object is told by each of its appliers in part; who no longer tells a field lets it go.

Differences to the real server: ownership begins with the first apply (``field_ownership.py``), and lists of
custom kinds are replaced as a whole whatever their schema says.
"""

from typing import Any

import orjson

from gpushare_playground.apiserver import convert, errors
from gpushare_playground.apiserver.errors import ApiError, Object
from gpushare_playground.apiserver.field_ownership import (
    APPLY,
    BEFORE_FIRST,
    UPDATE,
    entry,
    fields_of,
    is_of,
    less,
    ownable,
)
from gpushare_playground.apiserver.field_sets import (
    FieldSet,
    difference,
    from_members,
    is_absent,
    members,
    merge,
    shown,
    spared,
    union,
    value_at,
    without,
)
from gpushare_playground.apiserver.fields import FieldType, kind_type
from gpushare_playground.apiserver.resources import Resource
from gpushare_playground.apiserver.store import Store
from gpushare_playground.apiserver.writing import Outcome, WriteOptions, Writer

_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def apply_object(
    writer: Writer,
    store: Store,
    resource: Resource,
    namespace: str,
    name: str,
    wanted: Any,
    options: WriteOptions,
    *,
    subresource: str,
    manager_given: bool,
    force: bool,
    now: str,
) -> Outcome:
    """Create an object from an applied configuration, or merge the configuration into it.

    Raises ``ApiError``: 400 without a field manager, 409 when another manager owns a field that would
    change (unless ``force``), and whatever creating and replacing raise.
    """
    if not manager_given:
        found = [errors.required("fieldManager", "is required for apply patch")]
        raise errors.invalid("PatchOptions", "meta.k8s.io", "", found)
    if not isinstance(wanted, dict) or not wanted.get("apiVersion") or not wanted.get("kind"):
        raise errors.bad_request("an applied configuration is an object with apiVersion and kind")
    applied = _without_nulls(wanted)
    metadata = applied.setdefault("metadata", {})
    if metadata.get("managedFields"):
        raise errors.bad_request("metadata.managedFields must be nil")
    metadata.pop("managedFields", None)
    metadata.setdefault("name", name)
    settled, warnings = writer.take_in(resource, applied, options.validation, defaults=False)
    kind = kind_type(resource.schema if convert.is_stored_form(resource) else None)
    fields = fields_of(kind, settled)
    record = store.get(resource.storage, namespace, name)
    if record is None:
        if subresource:
            raise errors.not_found(resource.plural, resource.group, name)
        mine = entry(options.manager, APPLY, resource.api_version, fields, now)
        outcome = writer.create(resource, namespace, applied, options, managed=[mine])
        outcome.warnings = warnings
        return outcome
    live = convert.from_stored(resource, record.obj)
    _check_revision(resource, name, metadata, live)
    merged = _Merge(kind, live, settled, fields, options.manager, subresource, now)
    merged.check(resource, name, force=force)
    wanted_obj = merged.result(resource)
    outcome = writer.patch(resource, namespace, name, lambda _: wanted_obj, options, subresource)
    outcome.warnings = warnings
    return outcome


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    if isinstance(value, list):
        return [_without_nulls(one) for one in value]
    return value


def _check_revision(resource: Resource, name: str, metadata: Object, live: Object) -> None:
    wanted = metadata.get("resourceVersion")
    if wanted and wanted != live["metadata"]["resourceVersion"]:
        raise errors.conflict(resource.plural, resource.group, name, errors.MODIFIED)


class _Merge:
    """One apply onto a live object."""

    def __init__(
        self,
        kind: FieldType,
        live: Object,
        applied: Object,
        fields: FieldSet,
        manager: str,
        subresource: str,
        now: str,
    ) -> None:
        self.kind, self.live, self.applied, self.fields = kind, live, applied, fields
        self.manager, self.subresource, self.now = manager, subresource, now
        entries = live["metadata"].get("managedFields")
        if entries is None:
            entries = self._first_owners()
        mine = [one for one in entries if is_of(one, manager, APPLY, subresource)]
        self.others: list[Object] = [one for one in entries if one not in mine]
        self.before: FieldSet = mine[0]["fieldsV1"] if mine else {}
        self.taken: list[tuple[tuple[str, ...], Object]] = []

    def _first_owners(self) -> list[Object]:
        """Who owns the fields of an object that was never applied server-side."""
        fields = fields_of(self.kind, {**self.live, "status": {}})
        last = (self.live["metadata"].get("annotations") or {}).get(_LAST_APPLIED)
        if last:
            # Applied by a client so far: what it told belongs to whoever applies now.
            try:
                told = orjson.loads(last)
                fields = difference(fields, fields_of(self.kind, told))
                annotation: FieldSet = {"f:metadata": {"f:annotations": {f"f:{_LAST_APPLIED}": {}}}}
                fields = difference(fields, annotation)
            except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
                pass
        return [entry(BEFORE_FIRST, UPDATE, self.live["apiVersion"], fields, self.now)] if fields else []

    def check(self, resource: Resource, name: str, *, force: bool) -> None:
        """Find fields of others that would change. Raises ``ApiError`` 409 when there are some, unless forced."""
        own = ownable(self.applied)
        for path in members(self.fields):
            live = value_at(self.kind, self.live, path)
            wanted = value_at(self.kind, own, path)
            if is_absent(live) or live == wanted or path[-1].startswith("k:"):
                continue
            one_path = from_members([path])
            self.taken += [
                (path, other)
                for other in self.others
                if not difference(one_path, other.get("fieldsV1") or {})
            ]
        if self.taken and not force:
            raise self._conflict()

    def _conflict(self) -> ApiError:
        causes = [
            {
                "reason": "FieldManagerConflict",
                "message": f'conflict with "{other["manager"]}"'
                + (f" using {other['apiVersion']}" if other.get("operation") == UPDATE else ""),
                "field": shown(path),
            }
            for path, other in self.taken
        ]
        listed = "\n".join(f"- {cause['message']}: {cause['field']}" for cause in causes)
        count = len(causes)
        if count == 1:
            listed = f"{causes[0]['message']}: {causes[0]['field']}"
        word = "conflict" if count == 1 else "conflicts"
        return ApiError(
            409,
            "Conflict",
            f"Apply failed with {count} {word}: {listed}",
            {"causes": causes},
        )

    def result(self, resource: Resource) -> Object:
        """The merged object, with its new owners."""
        merged: Object = merge(self.kind, self.live, ownable(self.applied))
        others_fields: FieldSet = {}
        for other in self.others:
            others_fields = union(others_fields, other.get("fieldsV1") or {})
        dropped = spared(difference(difference(self.before, self.fields), others_fields), others_fields)
        merged = without(self.kind, merged, dropped)
        entries = less(self.others, from_members([path for path, _ in self.taken]))
        mine = entry(self.manager, APPLY, resource.api_version, self.fields, self.now, self.subresource)
        before = self.live["metadata"].get("managedFields") or []
        old_mine = next((one for one in before if is_of(one, self.manager, APPLY, self.subresource)), None)
        if old_mine is not None and old_mine["fieldsV1"] == self.fields:
            mine = old_mine
        if self.fields:
            place = before.index(old_mine) if old_mine in before else len(entries)
            entries.insert(min(place, len(entries)), mine)
        merged["metadata"] = {**merged.get("metadata", {}), "managedFields": entries}
        return merged
