"""``metadata.managedFields``: who owns which field of an object that is applied server-side.

Ownership is tracked from the first server-side apply of an object on; objects that nobody applies so carry
no ``managedFields`` at all, which keeps the many writes of pods and nodes cheap. Fields that were there
before belong to ``before-first-apply`` then, as on a real server whose object has lost its record.
"""

from typing import Any, Final

from gpushare_playground.apiserver.errors import Object
from gpushare_playground.apiserver.field_sets import (
    FieldSet,
    difference,
    from_members,
    is_absent,
    members,
    set_of,
    union,
    value_at,
)
from gpushare_playground.apiserver.fields import FieldType, kind_type

BEFORE_FIRST: Final = "before-first-apply"
APPLY, UPDATE = "Apply", "Update"
_SERVER_METADATA: Final = frozenset(
    (
        "name", "namespace", "generateName", "uid", "resourceVersion", "generation", "creationTimestamp",
        "selfLink", "deletionTimestamp", "deletionGracePeriodSeconds", "managedFields",
    )
)  # fmt: skip


def ownable(obj: Object) -> Object:
    """The part of an object that can have owners: without identity and what the server writes."""
    kept = {key: value for key, value in obj.items() if key not in ("apiVersion", "kind", "metadata")}
    metadata = {key: value for key, value in obj["metadata"].items() if key not in _SERVER_METADATA}
    return {"metadata": metadata, **kept} if metadata else kept


def fields_of(kind: FieldType, obj: Object) -> FieldSet:
    """The set of all ownable fields of an object."""
    return set_of(kind, ownable(obj))


def entry(
    manager: str, operation: str, api_version: str, fields: FieldSet, now: str, subresource: str = ""
) -> Object:
    """One record of ``managedFields``."""
    made: Object = {
        "manager": manager,
        "operation": operation,
        "apiVersion": api_version,
        "time": now,
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    }
    if subresource:
        made["subresource"] = subresource
    return made


def is_of(one: Object, manager: str, operation: str, subresource: str) -> bool:
    """Whether a record is that of a manager in one role."""
    return (
        one.get("manager") == manager
        and one.get("operation") == operation
        and one.get("subresource", "") == subresource
    )


def less(entries: list[Object], fields: FieldSet) -> list[Object]:
    """Records without some fields; those that own nothing any more are gone."""
    kept: list[Object] = []
    for one in entries:
        rest = difference(one.get("fieldsV1") or {}, fields)
        if rest:
            kept.append({**one, "fieldsV1": rest})
    return kept


def _changed(kind: FieldType, old: Object, new: Object) -> tuple[FieldSet, FieldSet]:
    """Fields that are new or have another value, and fields that are gone."""
    before, after = fields_of(kind, old), fields_of(kind, new)
    written = [
        path
        for path in members(after)
        if _differs(value_at(kind, old, path), value_at(kind, new, path), path)
    ]
    return from_members(written), difference(before, after)


def _differs(old: Any, new: Any, path: tuple[str, ...]) -> bool:
    if is_absent(old):
        return True
    # The thing itself (an element of a keyed list) is not written by writing into it.
    return bool(old != new) and not (path[-1].startswith("k:") and isinstance(new, dict))


def note_update(
    schema: str | None, old: Object, new: Object, manager: str, subresource: str, now: str
) -> None:
    """Move ownership of what an update wrote to ``manager``; only where ownership is tracked.

    ``new`` may carry records of its own (a client that rewrites them); they are taken as they are.
    """
    metadata = new["metadata"]
    tracked = old["metadata"].get("managedFields")
    given = metadata.get("managedFields")
    if given is not None and given != tracked:
        return
    metadata.pop("managedFields", None)
    if not tracked:
        return
    kind = kind_type(schema)
    written, gone = _changed(kind, old, new)
    if not written and not gone:
        metadata["managedFields"] = tracked
        return
    entries = less(tracked, union(written, gone))
    if written:
        mine = next((one for one in entries if is_of(one, manager, UPDATE, subresource)), None)
        fields = union(mine["fieldsV1"], written) if mine else written
        entries = [one for one in entries if one is not mine]
        entries.append(entry(manager, UPDATE, new["apiVersion"], fields, now, subresource))
    metadata["managedFields"] = entries
