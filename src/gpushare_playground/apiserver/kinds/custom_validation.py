"""Applies the structural schema of a CustomResourceDefinition to its objects: unknown fields, defaults, errors.

Supported: ``type``, ``properties``, ``additionalProperties``, ``items``, ``required``, ``enum``, bounds of
numbers, lengths, ``pattern``, ``nullable``, ``default``, ``x-kubernetes-int-or-string``,
``x-kubernetes-preserve-unknown-fields`` and ``x-kubernetes-embedded-resource``. Rules in CEL
(``x-kubernetes-validations``) and ``oneOf``/``anyOf``/``allOf``/``not`` are not.
"""

import copy
import re
from collections.abc import Callable
from typing import Any, Final

from gpushare_playground.apiserver.errors import (
    FieldError,
    Object,
    invalid_value,
    required,
    unsupported,
)
from gpushare_playground.apiserver.kinds.resources import Resource

_PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"
_INT_OR_STRING: Final = "x-kubernetes-int-or-string"
_ROOT: Final = ("apiVersion", "kind", "metadata")
_IS_TYPE: Final[dict[str, Callable[[Any], bool]]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: (
        (isinstance(value, int) and not isinstance(value, bool))
        or (isinstance(value, float) and value.is_integer())
    ),
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
}


def settle_custom(resource: Resource, obj: Object) -> list[str]:
    """Drop fields that are not in the schema, and set its defaults; returns the paths of the dropped fields."""
    schema = resource.validation
    if schema is None:
        return []
    unknown: list[str] = []
    root = {key: value for key, value in schema.get("properties", {}).items() if key not in _ROOT}
    root_values = {key: obj[key] for key in _ROOT if key in obj}
    other_values = {key: value for key, value in obj.items() if key not in _ROOT}
    _prune({**schema, "properties": root}, other_values, "", unknown)
    obj.clear()
    obj |= root_values | other_values
    return unknown


def first_custom_status(resource: Resource) -> Object | None:
    """The status of a new object: from the schema, because no client may set it."""
    part = ((resource.validation or {}).get("properties") or {}).get("status") or {}
    return copy.deepcopy(part.get("default"))


def _prune(schema: Object, value: Any, path: str, unknown: list[str]) -> None:
    """Drop unknown fields of ``value`` and set defaults, in place."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            _prune(schema.get("items") or {_PRESERVE: True}, item, f"{path}[{index}]", unknown)
        return
    if not isinstance(value, dict):
        return
    properties, others = schema.get("properties") or {}, schema.get("additionalProperties")
    for name, part in properties.items():
        if "default" in part and (name not in value or (value[name] is None and not part.get("nullable"))):
            value[name] = copy.deepcopy(part["default"])
    prefix = f"{path}." if path else ""
    for name in list(value):
        if name in properties:
            _prune(properties[name], value[name], prefix + name, unknown)
        elif isinstance(others, dict):
            _prune(others, value[name], prefix + name, unknown)
        elif others is not True and not schema.get(_PRESERVE):
            if schema.get("x-kubernetes-embedded-resource") and name in _ROOT:
                continue
            unknown.append(prefix + name)
            del value[name]


def check_custom(resource: Resource, obj: Object) -> list[FieldError]:
    """All violations of the schema."""
    if resource.validation is None:
        return []
    properties = resource.validation.get("properties") or {}
    errors = [required(name) for name in resource.validation.get("required") or () if name not in obj]
    for name, value in obj.items():
        if name in properties and name not in _ROOT:
            _check(properties[name], value, name, errors)
    return errors


def _check(schema: Object, value: Any, path: str, errors: list[FieldError]) -> None:
    if value is None:
        if not schema.get("nullable"):
            errors.append(_wrong_type(path, value, schema.get("type", "object")))
        return
    kind = schema.get("type")
    if schema.get(_INT_OR_STRING):
        if not isinstance(value, str) and not _IS_TYPE["integer"](value):
            errors.append(_wrong_type(path, value, "integer,string"))
        return
    if kind in _IS_TYPE and not _IS_TYPE[kind](value):
        errors.append(_wrong_type(path, value, kind))
        return
    if "enum" in schema and value not in schema["enum"]:
        errors.append(unsupported(path, value, tuple(str(item) for item in schema["enum"])))
    _check_bounds(schema, value, path, errors)
    if isinstance(value, list):
        for index, item in enumerate(value):
            _check(schema.get("items") or {}, item, f"{path}[{index}]", errors)
    elif isinstance(value, dict):
        errors.extend(
            required(f"{path}.{name}") for name in schema.get("required") or () if name not in value
        )
        properties, others = schema.get("properties") or {}, schema.get("additionalProperties")
        for name, item in value.items():
            part = properties.get(name, others if isinstance(others, dict) else None)
            if part is not None:
                _check(part, item, f"{path}.{name}", errors)


def _wrong_type(path: str, value: Any, wanted: str) -> FieldError:
    type_names = {
        dict: "object",
        list: "array",
        str: "string",
        bool: "boolean",
        int: "integer",
        float: "number",
    }
    name = type_names.get(type(value), "null")
    text = f'{path} in body must be of type {wanted}: "{name}"'
    return FieldError("FieldValueTypeInvalid", path, text, name)


_BOUNDS: Final[tuple[tuple[str, str, Callable[[Any, Any], bool], str], ...]] = (
    ("minimum", "number", lambda value, bound: value >= bound, "should be greater than or equal to {}"),
    ("maximum", "number", lambda value, bound: value <= bound, "should be less than or equal to {}"),
    ("minLength", "string", lambda value, bound: len(value) >= bound, "should be at least {} chars long"),
    ("maxLength", "string", lambda value, bound: len(value) <= bound, "may not be more than {} bytes"),
    ("minItems", "array", lambda value, bound: len(value) >= bound, "should have at least {} items"),
    ("maxItems", "array", lambda value, bound: len(value) <= bound, "must have at most {} items"),
    (
        "minProperties",
        "object",
        lambda value, bound: len(value) >= bound,
        "should have at least {} properties",
    ),
    ("maxProperties", "object", lambda value, bound: len(value) <= bound, "must have at most {} properties"),
    ("pattern", "string", lambda value, bound: re.search(bound, value) is not None, "should match '{}'"),
)


def _check_bounds(schema: Object, value: Any, path: str, errors: list[FieldError]) -> None:
    for word, kind, holds, text in _BOUNDS:
        if word in schema and _IS_TYPE[kind](value) and not holds(value, schema[word]):
            detail = f"{path} in body {text.format(schema[word])}"
            errors.append(invalid_value(path, value, detail))
