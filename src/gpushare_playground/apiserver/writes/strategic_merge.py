"""Strategic merge patch: a merge patch that treats some lists as maps.

A list whose type has a merge key (``containers`` by ``name``, ``ports`` by ``containerPort``) merges
element by element; a set of scalars (``finalizers``) is united; every other list is replaced. Directives
in the patch: ``$patch: delete|replace|merge``, ``$deleteFromPrimitiveList/FIELD``,
``$setElementOrder/FIELD`` and ``$retainKeys``. Kinds without a known type cannot be patched this way.
"""

from typing import Any, Final

from gpushare_playground.apiserver.errors import ApiError, Object, bad_request
from gpushare_playground.apiserver.wire.fields import ANY, FieldType, child, kind_type, table

_DIRECTIVE: Final = "$patch"
_RETAIN: Final = "$retainKeys"
_DELETE_PRIMITIVE: Final = "$deleteFromPrimitiveList/"
_ORDER: Final = "$setElementOrder/"


def strategic_merge(schema: str | None, target: Object, patch: Any) -> Object:
    """``patch`` merged into ``target``, an object of the kind ``schema``; neither is changed.

    Raises ``ApiError``: 415 for kinds whose fields are not known, 400 for a malformed patch.
    """
    if schema is None or schema not in table():
        raise ApiError(
            415,
            "UnsupportedMediaType",
            "the body of the request was in an unknown format - accepted media types include:"
            " application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
        )
    if not isinstance(patch, dict):
        raise bad_request("a strategic merge patch is an object")
    merged = _merge_map(kind_type(schema), target, patch)
    return merged if merged is not None else {}


def _merge_map(kind: FieldType, target: Any, patch: Object) -> Object | None:
    directive = patch.get(_DIRECTIVE)
    if directive == "delete":
        return None
    if directive == "replace":
        replaced: Object = _plain(patch)
        return replaced
    if directive not in (None, "merge"):
        raise bad_request(f"unknown directive $patch: {directive!r}")
    merged: Object = dict(target) if isinstance(target, dict) else {}
    retained = patch.get(_RETAIN)
    if retained is not None:
        if not isinstance(retained, list):
            raise bad_request("$retainKeys must be a list of field names")
        merged = {key: value for key, value in merged.items() if key in retained}
    for key, value in patch.items():
        if key in (_DIRECTIVE, _RETAIN):
            continue
        if key.startswith(_DELETE_PRIMITIVE):
            name = key.removeprefix(_DELETE_PRIMITIVE)
            if isinstance(merged.get(name), list) and isinstance(value, list):
                merged[name] = [one for one in merged[name] if one not in value]
        elif not key.startswith(_ORDER):
            _merge_field(child(kind, key), merged, key, value, patch.get(_ORDER + key))
    for key, order in patch.items():
        # An order without elements reorders the existing list.
        name = key.removeprefix(_ORDER)
        if key.startswith(_ORDER) and name not in patch and isinstance(merged.get(name), list):
            merged[name] = _reordered(child(kind, name), merged[name], merged[name], order)
    return merged


def _merge_field(kind: FieldType, merged: Object, key: str, value: Any, order: Any) -> None:
    if value is None:
        merged.pop(key, None)
        return
    if isinstance(value, dict):
        merged_value = _merge_map(kind, merged.get(key), value)
        if merged_value is None:
            merged.pop(key, None)
        else:
            merged[key] = merged_value
        return
    if isinstance(value, list) and kind.form == "list" and kind.merge_keys is not None:
        merged[key] = _merge_list(kind, merged.get(key) or [], value, order)
        return
    merged[key] = _plain(value)


def _merge_list(kind: FieldType, target: list[Any], patch: list[Any], order: Any) -> list[Any]:
    if not kind.merge_keys:
        united = list(target) + [
            element
            for index, element in enumerate(patch)
            if element not in target and element not in patch[:index]
        ]
        return _reordered(kind, united, target, order)
    merge_key, item = kind.merge_keys[0], kind.item or ANY
    replace = any(isinstance(element, dict) and element.get(_DIRECTIVE) == "replace" for element in patch)
    merged: list[Any] = [] if replace else list(target)
    for element in patch:
        if not isinstance(element, dict):
            raise bad_request(f"a list merged by {merge_key} holds objects only")
        if replace and element.get(_DIRECTIVE) == "replace" and merge_key not in element:
            continue
        wanted = element.get(merge_key)
        if wanted is None:
            raise bad_request(f"map: {_plain(element)} does not contain declared merge key: {merge_key}")
        places = [
            index
            for index, old in enumerate(merged)
            if isinstance(old, dict) and old.get(merge_key) == wanted
        ]
        if element.get(_DIRECTIVE) == "delete":
            merged = [old for index, old in enumerate(merged) if index not in places]
        elif places:
            merged[places[0]] = _merge_map(item, merged[places[0]], element)
        else:
            merged.append(_merge_map(item, {}, element))
    return _reordered(kind, merged, target, order)


def _reordered(kind: FieldType, merged: list[Any], target: list[Any], order: Any) -> list[Any]:
    """The elements named by ``order`` in that order; the others keep their position before their successor."""
    if not isinstance(order, list):
        return merged
    merge_key = kind.merge_keys[0] if kind.merge_keys else None

    def name(element: Any) -> Any:
        return element.get(merge_key) if merge_key is not None and isinstance(element, dict) else element

    ranks = {name(element): rank for rank, element in enumerate(order)}
    ordered = sorted(
        (element for element in merged if name(element) in ranks), key=lambda element: ranks[name(element)]
    )
    live_order = {name(element): place for place, element in enumerate(target)}
    result: list[Any] = []
    others = [element for element in merged if name(element) not in ranks]
    for element in ordered:
        place = live_order.get(name(element))
        while others and place is not None and live_order.get(name(others[0]), len(target)) < place:
            result.append(others.pop(0))
        result.append(element)
    return result + others


def _plain(value: Any) -> Any:
    """A value of the patch without directives, as it is set if the field did not exist."""
    if isinstance(value, dict):
        return {
            key: _plain(one)
            for key, one in value.items()
            if one is not None
            and key not in (_DIRECTIVE, _RETAIN)
            and not key.startswith((_DELETE_PRIMITIVE, _ORDER))
        }
    if isinstance(value, list):
        return [
            _plain(one) for one in value if not (isinstance(one, dict) and one.get(_DIRECTIVE) == "delete")
        ]
    return value
