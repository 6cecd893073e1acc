"""The fields of the served kinds, and what is derived from them.

One table (``fields/*.txt``) lists for every type its fields and their types. It is the source of the check
for unknown fields, the canonical form of quantities, the merge keys of strategic merge, and the OpenAPI documents that ``kubectl explain`` and ``kubectl apply`` read.

Notation, one type per paragraph: ``Type field=N:T field!=N:T field?=N:T …`` where N is the field's number
in protobuf (``2.1`` = field 1 of the part that is embedded as 2), ``!`` means that it is always present,
``?`` that its zero is distinguished from its absence, and T is one of
``str int bool float time microtime quantity intstr bytes any``, another type's name, ``{T}`` (map
from string), or ``[T]`` (list, replaced as a whole). ``[T;key]`` is a list merged by ``key``, ``[T;]`` a set of scalars,
``;retain`` and a trailing ``~`` mean that a patch may contain ``$retainKeys``. ``@Object`` stands for the
fields that all objects have.
"""

import functools
import re
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any, Final

from gpushare.api.errors import InvalidQuantity
from gpushare.api.quantity import parse_quantity
from gpushare_playground.apiserver.errors import Object

_TABLES: Final = ("pods", "core", "groups")
_FIELD = re.compile(r"(?P<name>\w+)(?P<mark>[!?]?)(?:=(?P<number>[\d.]+))?:(?P<type>\S+)")
_LIST = re.compile(r"\[(?P<item>[^;\]]+)(?:;(?P<keys>[^;\]]*))?(?:;(?P<retain>retain))?\]")


@dataclass(frozen=True, slots=True)
class FieldType:
    """The type of a field. ``form`` is ``scalar``, ``struct``, ``map``, ``list`` or ``any``.

    ``name`` names the scalar or struct; ``item`` is the type of a map's or list's elements;
    ``merge_keys`` are a merged list's keys (``()`` for a set of scalars, None for an atomic list).
    ``number`` is its field number in protobuf, from the outermost embedded part inwards.
    """

    form: str
    name: str = ""
    item: "FieldType | None" = None
    merge_keys: tuple[str, ...] | None = None
    required: bool = False
    keeps_zero: bool = False
    number: tuple[int, ...] = ()


ANY: Final = FieldType("any", "any")
_SCALARS: Final = frozenset(
    ("str", "int", "bool", "float", "time", "microtime", "quantity", "intstr", "bytes")
)


@dataclass(frozen=True, slots=True)
class StructType:
    """A type of the table: its fields by name."""

    name: str
    fields: dict[str, FieldType] = field(default_factory=dict)


def _parse_type(text: str) -> FieldType:
    if text == "any":
        return ANY
    if text in _SCALARS:
        return FieldType("scalar", text)
    if text.startswith("{"):
        return FieldType("map", item=_parse_type(text[1:-1]))
    if text.startswith("["):
        match = _LIST.fullmatch(text)
        if match is None:
            raise ValueError(f"fields table: cannot read type {text!r}")
        keys = match["keys"]
        merge_keys = None if keys is None else tuple(key for key in keys.split(",") if key)
        return FieldType("list", item=_parse_type(match["item"]), merge_keys=merge_keys)
    return FieldType("struct", text.rstrip("~"))


@functools.cache
def table() -> dict[str, StructType]:
    """All types of the table by name; read once."""
    types: dict[str, StructType] = {}
    folder = resources.files(__package__) / "fields"
    for name in _TABLES:
        text = (folder / f"{name}.txt").read_text(encoding="utf-8").replace("\n    ", " ")
        for line in text.splitlines():
            if line and not line.startswith("#"):
                struct = _parse_struct(line.split())
                types[struct.name] = struct
    return types


def _parse_struct(words: list[str]) -> StructType:
    struct = StructType(words[0])
    for word in words[1:]:
        if word == "@Object":
            struct.fields.update(_OBJECT)
            continue
        match = _FIELD.fullmatch(word)
        if match is None:
            raise ValueError(f"fields table: cannot read {word!r} of {words[0]}")
        struct.fields[match["name"]] = replace(
            _parse_type(match["type"]),
            required=match["mark"] == "!",
            keeps_zero=match["mark"] == "?",
            number=tuple(int(step) for step in (match["number"] or "").split(".") if step),
        )
    return struct


_OBJECT: Final = {
    "kind": FieldType("scalar", "str"),
    "apiVersion": FieldType("scalar", "str"),
    "metadata": FieldType("struct", "ObjectMeta", number=(1,)),
}
METADATA: Final = _OBJECT["metadata"]


def struct_fields(type_name: str | None) -> dict[str, FieldType]:
    """Fields of a type; for a kind that is not in the table, those that all objects have."""
    struct = table().get(type_name) if type_name else None
    return struct.fields if struct is not None else _OBJECT


class FieldTypeError(ValueError):
    """A field holds a value of a wrong JSON type: ``path`` and what was expected."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message)
        self.path = path


def settle(type_name: str | None, obj: Object) -> tuple[Object, list[str]]:
    """An object in the form in which it is stored, and the paths of its unknown fields.

    Typed kinds lose unknown fields, nulls and empty maps and lists, and quantities become canonical,
    as by a round trip through Go's types. ``type_name`` None (a kind that is not in the
    table): only ``metadata`` is treated this way. Raises ``FieldTypeError``.
    """
    unknown: list[str] = []
    if type_name is not None and type_name in table():
        return _settle_struct(table()[type_name].fields, obj, "", unknown), unknown
    settled = dict(obj)
    if "metadata" in obj:
        settled["metadata"] = _settle(METADATA, obj["metadata"], "metadata", unknown)
    return settled, unknown


def _settle_struct(fields: dict[str, FieldType], obj: Any, path: str, unknown: list[str]) -> Object:
    if not isinstance(obj, dict):
        raise FieldTypeError(path, _mismatch(obj, path, "object"))
    result: Object = {}
    prefix = f"{path}." if path else ""
    for name, value in obj.items():
        expected = fields.get(name)
        if expected is None:
            unknown.append(prefix + name)
        elif value is not None:
            settled = _settle(expected, value, prefix + name, unknown)
            droppable = expected.form in ("map", "list") and not expected.required
            if settled or not droppable:
                result[name] = settled
    return result


def _settle(expected: FieldType, value: Any, path: str, unknown: list[str]) -> Any:
    match expected.form:
        case "any":
            return value
        case "scalar":
            return _settle_scalar(expected.name, value, path)
        case "struct":
            struct = table().get(expected.name)
            return value if struct is None else _settle_struct(struct.fields, value, path, unknown)
    item = expected.item or ANY
    if expected.form == "map":
        if not isinstance(value, dict):
            raise FieldTypeError(path, _mismatch(value, path, "object"))
        return {
            key: _settle(
                item, "" if element is None and item.name == "str" else element, f"{path}[{key}]", unknown
            )
            for key, element in value.items()
        }
    if not isinstance(value, list):
        raise FieldTypeError(path, _mismatch(value, path, "array"))
    return [_settle(item, element, f"{path}[{index}]", unknown) for index, element in enumerate(value)]


def _settle_scalar(kind: str, value: Any, path: str) -> Any:
    match kind:
        case "quantity":
            return canonical_quantity(value, path)
        case "int":
            good = isinstance(value, int) and not isinstance(value, bool)
            if not good and isinstance(value, float) and value.is_integer():
                return int(value)
        case "bool":
            good = isinstance(value, bool)
        case "float":
            good = isinstance(value, (int, float)) and not isinstance(value, bool)
        case "intstr":
            good = isinstance(value, (int, str)) and not isinstance(value, bool)
        case _:
            good = isinstance(value, str)
    if not good:
        raise FieldTypeError(path, _mismatch(value, path, kind))
    return value


def _mismatch(value: Any, path: str, expected: str) -> str:
    json_type = {dict: "object", list: "array", str: "string", bool: "bool", type(None): "null"}.get(
        type(value), "number"
    )
    return f"json: cannot unmarshal {json_type} into field {path} of type {expected}"


_NUMBER_AND_SUFFIX: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)[eEinumkKMGTP]*[-+]?\d*", re.ASCII)
_DECIMAL_SUFFIXES: Final = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
_BINARY_SUFFIXES: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


@functools.lru_cache(maxsize=8192)
def _canonical(text: str) -> str:
    value = parse_quantity(text)
    if text[-1:] == "i" and value.denominator == 1:
        whole, step = int(value), 0
        while step < 6 and whole and whole % 1024 == 0:
            whole, step = whole // 1024, step + 1
        return f"{whole}{_BINARY_SUFFIXES[step]}"
    # Go keeps nine decimals and rounds away from zero.
    nano, rest = divmod(abs(value) * 10**9, 1)
    digits, step = int(nano) + (1 if rest else 0), 0
    sign = "-" if value < 0 else ""
    if "e" in text.lower() and text[-1:] != "E":
        return _exponent_form(digits, sign)
    while step < len(_DECIMAL_SUFFIXES) - 1 and digits and digits % 1000 == 0:
        digits, step = digits // 1000, step + 1
    return f"{sign}{digits}{_DECIMAL_SUFFIXES[step]}" if digits else "0"


def _exponent_form(digits: int, sign: str) -> str:
    exponent = -9
    while digits and digits % 1000 == 0:
        digits, exponent = digits // 1000, exponent + 3
    return f"{sign}{digits}e{exponent}" if exponent and digits else f"{sign}{digits}"


def canonical_quantity(value: Any, path: str) -> str:
    """``"1000m"`` → ``"1"``, ``3`` → ``"3"``: the form in which the API shows a quantity."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise FieldTypeError(path, _mismatch(value, path, "quantity"))
    try:
        return _canonical(str(value).strip())
    except InvalidQuantity:
        raise FieldTypeError(path, _no_quantity(str(value).strip())) from None


def _no_quantity(text: str) -> str:
    """The API server's message: it names no field, because it fails while it reads the JSON."""
    if _NUMBER_AND_SUFFIX.fullmatch(text):
        return "unable to parse quantity's suffix"
    return "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"


def child(expected: FieldType, name: str) -> FieldType:
    """The type of ``name`` inside a value of type ``expected`` (map value, struct field); ANY if unknown."""
    if expected.form == "map":
        return expected.item or ANY
    if expected.form == "struct":
        return struct_fields(expected.name).get(name, ANY)
    return ANY


def kind_type(type_name: str | None) -> FieldType:
    """The type of a whole object of kind ``type_name``; unknown kinds are structs with metadata only."""
    return FieldType("struct", type_name if type_name is not None and type_name in table() else "")
