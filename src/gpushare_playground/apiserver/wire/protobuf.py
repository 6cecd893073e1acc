"""Bodies in protobuf, as kubectl's typed commands and most Go programs send them.

The envelope is ``k8s\\0`` and a ``runtime.Unknown``: type (1: apiVersion 1, kind 2) and the object (2).
Field numbers come from the fields table, so that any kind of the table can be read. Responses are always JSON:
clients that send protobuf accept it.
"""

import base64
import functools
import struct
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final, cast

import orjson

from gpushare_playground.apiserver.errors import Object, bad_request
from gpushare_playground.apiserver.wire.fields import ANY, FieldType, table

MEDIA_TYPE: Final = "application/vnd.kubernetes.protobuf"
_MAGIC: Final = b"k8s\x00"
_DEPTH_MAX: Final = 64
_SIGN: Final = 1 << 63

_Plan = dict[int, Any]
"""Field number → (name, type), or the plan of an embedded part."""


class _Malformed(ValueError):
    pass


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise _Malformed("a number is cut off")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def _parts(data: memoryview) -> Iterator[tuple[int, Any]]:
    """Field numbers and raw values: an int, or the bytes of a length-delimited or fixed field."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, position = _varint(data, position)
            yield number, value
            continue
        if wire == 2:
            size, position = _varint(data, position)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise _Malformed(f"wire type {wire} is not used by Kubernetes")
        if position + size > len(data):
            raise _Malformed("a field is cut off")
        yield number, data[position : position + size]
        position += size


@functools.cache
def _plan(type_name: str) -> _Plan:
    plan: _Plan = {}
    for name, kind in table()[type_name].fields.items():
        if kind.number:
            place = plan
            for step in kind.number[:-1]:
                place = place.setdefault(step, {})
            place[kind.number[-1]] = (name, kind)
    return plan


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= _SIGN else value


def _text(data: Any) -> str:
    return bytes(data).decode("utf-8")


def _time(data: Any, *, micro: bool) -> str | None:
    numbers = {number: value for number, value in _parts(data) if isinstance(value, int)}
    if not numbers:
        return None
    seconds, nanos = _signed(numbers.get(1, 0)), numbers.get(2, 0)
    moment = datetime.fromtimestamp(seconds, UTC)
    if micro:
        return moment.replace(microsecond=nanos // 1000).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _scalar(kind: str, value: Any) -> Any:
    match kind:
        case "int":
            return _signed(value)
        case "bool":
            return bool(value)
        case "float":
            return struct.unpack("<d", value)[0]
        case "bytes":
            return base64.b64encode(value).decode()
        case "time" | "microtime":
            return _time(value, micro=kind == "microtime")
        case "quantity":
            return next((_text(one) for number, one in _parts(value) if number == 1), "0")
        case "intstr":
            fields = dict(_parts(value))
            return _text(fields[3]) if fields.get(1) == 1 and 3 in fields else _signed(fields.get(2, 0))
    return _text(value)


def _value(kind: FieldType, value: Any, depth: int) -> Any:
    if depth > _DEPTH_MAX:
        raise _Malformed("parts are nested too deeply")
    match kind.form:
        case "scalar":
            return _scalar(kind.name, value)
        case "struct":
            return _struct(_plan(kind.name), value, depth + 1) if kind.name in table() else {}
        case "any":
            raw = next((one for number, one in _parts(value) if number == 1), None)
            try:
                return {} if raw is None or isinstance(raw, int) else orjson.loads(raw)
            except orjson.JSONDecodeError:
                return {}
    raise _Malformed(f"a {kind.form} within a {kind.form}")


def _struct(plan: _Plan, data: Any, depth: int) -> Object:
    decoded_fields: Object = {}
    for number, value in _parts(data):
        place = plan.get(number)
        if place is None:
            continue
        if isinstance(place, dict):
            decoded_fields |= _struct(place, value, depth + 1)
            continue
        name, kind = place
        if kind.form == "map":
            entry = dict(_parts(value))
            item = kind.item or ANY
            decoded = _value(item, entry[2], depth) if 2 in entry else ("" if item.name == "str" else None)
            decoded_fields.setdefault(name, {})[_text(entry.get(1, b""))] = decoded
        elif kind.form == "list":
            decoded_fields.setdefault(name, []).extend(_elements(kind.item or ANY, value, depth))
        else:
            decoded = _value(kind, value, depth)
            # Go also writes zeros of plain fields; JSON omits them.
            if decoded is not None and (decoded or kind.keeps_zero or kind.required or kind.form != "scalar"):
                decoded_fields[name] = decoded
    return decoded_fields


def _elements(item: FieldType, value: Any, depth: int) -> list[Any]:
    if item.form == "scalar" and item.name in ("int", "bool") and not isinstance(value, int):
        packed: list[Any] = []
        position = 0
        while position < len(value):
            element, position = _varint(value, position)
            packed.append(_scalar(item.name, element))
        return packed
    return [_value(item, value, depth)]


SchemaOf = Callable[[str, str], str | None]
"""From apiVersion and kind to a type of the fields table, None for a kind that is not in it."""


def decode(body: bytes, schema_of: SchemaOf) -> Object:
    """The object in a protobuf body; for a kind without schema only its type.

    Raises ``ApiError`` 400 for any other body.
    """
    if not body.startswith(_MAGIC):
        raise bad_request("the body does not start with k8s\\0 as Kubernetes protobuf does")
    try:
        envelope = dict(_parts(memoryview(body)[len(_MAGIC) :]))
        type_meta = {number: _text(value) for number, value in _parts(envelope.get(1, b""))}
        api_version, kind = type_meta.get(1, ""), type_meta.get(2, "")
        obj: Object = {"apiVersion": api_version, "kind": kind}
        schema = schema_of(api_version, kind)
        if schema is not None:
            obj |= _struct(_plan(schema), cast("Any", envelope.get(2, b"")), 0)
    except (ValueError, KeyError, TypeError, struct.error, OverflowError) as error:
        raise bad_request(f"the body is not valid protobuf: {error}") from None
    return obj
