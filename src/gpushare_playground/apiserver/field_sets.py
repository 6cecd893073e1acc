"""Sets of field paths, in the form in which ``managedFields`` keeps them (``FieldsV1``).

A set is a nested dict: ``f:NAME`` steps into a field or map key, ``k:{"name":"c"}`` into the element of a
merged list, ``v:"x"`` is a member of a set of scalars, ``.`` says that the thing itself is in the set.
A step with nothing below it is a member too. Lists without keys are members as a whole.
"""

from typing import Any, Final

import orjson

from gpushare_playground.apiserver.fields import ANY, FieldType, child

FieldSet = dict[str, Any]
SELF: Final = "."
_ABSENT: Final = object()


def _key_step(kind: FieldType, element: Any) -> str:
    keys = {
        key: element[key] for key in kind.merge_keys or () if isinstance(element, dict) and key in element
    }
    return "k:" + orjson.dumps(keys, option=orjson.OPT_SORT_KEYS).decode()


def _value_step(value: Any) -> str:
    return "v:" + orjson.dumps(value).decode()


def _is_granular(kind: FieldType, value: Any) -> bool:
    return isinstance(value, dict) and kind.form in ("struct", "map", "any")


def set_of(kind: FieldType, value: Any) -> FieldSet:
    """The set of all fields of a value."""
    if _is_granular(kind, value):
        return {f"f:{name}": set_of(child(kind, name), one) for name, one in value.items()}
    if isinstance(value, list) and kind.form == "list" and kind.merge_keys is not None:
        item = kind.item or ANY
        if kind.merge_keys == ():
            return {_value_step(one): {} for one in value}
        return {_key_step(kind, one): {SELF: {}, **set_of(item, one)} for one in value}
    return {}


def union(one: FieldSet, other: FieldSet) -> FieldSet:
    """What is in either set."""
    both = dict(one)
    for step, below in other.items():
        if step not in both:
            both[step] = below
            continue
        here = both[step]
        merged = union(here, below)
        if merged and SELF not in merged and (not here or not below):
            # One of them has the thing itself, the other something in it.
            merged[SELF] = {}
        both[step] = merged
    return both


def difference(one: FieldSet, other: FieldSet) -> FieldSet:
    """What is in ``one`` and not in ``other``."""
    rest: FieldSet = {}
    for step, below in one.items():
        if step not in other:
            rest[step] = below
            continue
        theirs = other[step]
        if not below:
            if theirs and SELF not in theirs:
                rest[step] = below
            continue
        left = difference(below, theirs or {SELF: {}})
        if left:
            rest[step] = left
    return rest


def spared(fields: FieldSet, others: FieldSet) -> FieldSet:
    """``fields`` less those things in which ``others`` has something: they must stay for its sake."""
    kept: FieldSet = {}
    for step, below in fields.items():
        theirs = others.get(step)
        if not theirs:
            kept[step] = below
            continue
        rest = spared({inner: one for inner, one in below.items() if inner != SELF}, theirs)
        if rest:
            kept[step] = rest
    return kept


def members(fields: FieldSet, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The paths that are in the set, each a tuple of steps."""
    found: list[tuple[str, ...]] = []
    for step, below in fields.items():
        if step == SELF:
            found.append(path)
        elif below:
            found += members(below, (*path, step))
        else:
            found.append((*path, step))
    return found


def from_members(paths: list[tuple[str, ...]]) -> FieldSet:
    """The set that holds just these paths."""
    fields: FieldSet = {}
    for path in paths:
        one: FieldSet = {}
        for step in reversed(path):
            one = {step: one}
        fields = union(fields, one)
    return fields


def shown(path: tuple[str, ...]) -> str:
    """A path as conflicts name it: ``.spec.containers[name="c"].image``."""
    text = ""
    for step in path:
        kind, _, rest = step.partition(":")
        if kind == "f":
            text += f".{rest}"
        elif kind == "k":
            keys = orjson.loads(rest)
            text += "[" + ",".join(f"{key}={orjson.dumps(keys[key]).decode()}" for key in sorted(keys)) + "]"
        else:
            text += f"[={rest}]"
    return text


def value_at(kind: FieldType, value: Any, path: tuple[str, ...]) -> Any:
    """The value at a path, ``absent`` where there is none (see ``is_absent``)."""
    if not path:
        return value
    step, rest = path[0], path[1:]
    tag, _, text = step.partition(":")
    if tag == "f":
        if not isinstance(value, dict) or text not in value:
            return _ABSENT
        return value_at(child(kind, text), value[text], rest)
    if not isinstance(value, list):
        return _ABSENT
    for one in value:
        if tag == "k" and kind.merge_keys and _key_step(kind, one) == step:
            return value_at(kind.item or ANY, one, rest)
        if tag == "v" and _value_step(one) == step:
            return one
    return _ABSENT


def is_absent(value: Any) -> bool:
    """Whether ``value_at`` found nothing."""
    return value is _ABSENT


def without(kind: FieldType, value: Any, fields: FieldSet) -> Any:
    """A value less the members of a set; what becomes empty through it goes as well."""
    if _is_granular(kind, value):
        kept = {}
        for name, one in value.items():
            below = fields.get(f"f:{name}", _ABSENT)
            if below is _ABSENT:
                kept[name] = one
            elif below and SELF not in below:
                rest = without(child(kind, name), one, below)
                if rest or not isinstance(rest, (dict, list)):
                    kept[name] = rest
        return kept
    if isinstance(value, list) and kind.form == "list" and kind.merge_keys is not None:
        if kind.merge_keys == ():
            return [one for one in value if _value_step(one) not in fields]
        left = []
        for one in value:
            below = fields.get(_key_step(kind, one), _ABSENT)
            if below is _ABSENT:
                left.append(one)
            elif below and SELF not in below:
                left.append(without(kind.item or ANY, one, below))
        return left
    return value


def merge(kind: FieldType, live: Any, applied: Any) -> Any:
    """``applied`` laid over ``live``: maps and keyed lists merge, all else is replaced."""
    if _is_granular(kind, applied):
        merged = dict(live) if isinstance(live, dict) else {}
        for name, one in applied.items():
            merged[name] = merge(child(kind, name), merged.get(name), one)
        return merged
    if isinstance(applied, list) and kind.form == "list" and kind.merge_keys is not None:
        present = list(live) if isinstance(live, list) else []
        if kind.merge_keys == ():
            return present + [one for one in applied if one not in present]
        places = {_key_step(kind, one): index for index, one in enumerate(present)}
        for one in applied:
            step = _key_step(kind, one)
            if step in places:
                present[places[step]] = merge(kind.item or ANY, present[places[step]], one)
            else:
                present.append(one)
        return present
    return applied
