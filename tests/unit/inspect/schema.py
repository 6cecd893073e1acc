"""The part of JSON Schema that ``docs/guide/inspect.schema.json`` uses."""

import json
from pathlib import Path
from typing import Any, Final

SCHEMA: Final[dict[str, Any]] = json.loads(
    (Path(__file__).parents[3] / "docs/guide/inspect.schema.json").read_text()
)
_TYPES: Final[dict[str, Any]] = {
    "string": str,
    "object": dict,
    "array": list,
    "null": type(None),
    "boolean": bool,
    "integer": int,
    "number": (int, float),
}
_KNOWN: Final = frozenset(
    [
        "$schema",
        "title",
        "description",
        "$defs",
        "$ref",
        "type",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "prefixItems",
        "minItems",
        "maxItems",
        "anyOf",
        "oneOf",
        "enum",
        "const",
    ]
)


def faults(value: Any, schema: dict[str, Any] | None = None, at: str = "$") -> list[str]:
    """Violations of the schema in ``value``."""
    schema = SCHEMA if schema is None else schema
    assert schema.keys() <= _KNOWN, schema.keys() - _KNOWN
    if "$ref" in schema:
        return faults(value, SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]], at)
    found: list[str] = []
    for key in ("anyOf", "oneOf"):
        if key in schema:
            tried = [faults(value, one, at) for one in schema[key]]
            fitting = [one for one in tried if not one]
            if not fitting or (key == "oneOf" and len(fitting) > 1):
                found += min(tried, key=len) or [f"{at}: fits more than one"]
    if "type" in schema:
        right = isinstance(value, _TYPES[schema["type"]])
        if not right or (isinstance(value, bool) and schema["type"] in ("integer", "number")):
            return [*found, f"{at}: no {schema['type']}: {value!r}"]
    if "const" in schema and value != schema["const"]:
        found.append(f"{at}: {value!r}")
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{at}: {value!r} is none of {schema['enum']}")
    return found + _within(value, schema, at)


def _within(value: Any, schema: dict[str, Any], at: str) -> list[str]:
    """The same for the contents of an object or an array."""
    found: list[str] = []
    if isinstance(value, dict):
        found += [f"{at}: no {key}" for key in schema.get("required", ()) if key not in value]
        rest = schema.get("additionalProperties", True)
        for key, item in value.items():
            inner = schema.get("properties", {}).get(key, rest)
            if isinstance(inner, dict):
                found += faults(item, inner, f"{at}.{key}")
    if isinstance(value, list):
        first = schema.get("prefixItems", [])
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            found.append(f"{at}: {len(value)} items")
        for number, item in enumerate(value):
            inner = first[number] if number < len(first) else schema.get("items")
            if inner is not None:
                found += faults(item, inner, f"{at}[{number}]")
    return found
