"""The types of option values, and how each is parsed, from a text or from a value of a file.

Everything is read strictly: a number in quotes is a number to a flag, and to a file a text. A time may have a unit (``5m``);
without one it is in the unit of its option.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from gpushare.api.quantity import MemoryUnit

# Compiled on first use: option parsing delays the start of every process.
_SPAN: Final = r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)"
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TRUTH: Final = {"true": True, "1": True, "false": False, "0": False}
_NUMBER: Final = r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?"


class Text(str):
    """The text of a flag or variable, to be parsed as any type."""

    __slots__ = ()


def _text(raw: Any) -> str:
    if not isinstance(raw, str) or not raw or "\0" in raw:
        raise ValueError
    return str(raw)


def _path(raw: Any) -> Path:
    return Path(_text(raw))


def _integer(raw: Any) -> int:
    if isinstance(raw, Text):
        return int(raw)
    if isinstance(raw, bool) or not isinstance(raw, int):
        raise ValueError
    return raw


def _span(unit_s: float) -> Callable[[Any], float]:
    def read(raw: Any) -> float:
        if isinstance(raw, str):
            match = re.fullmatch(_SPAN, raw)
            if match is not None:
                return float(match[1]) * _SECONDS[match[2]] / unit_s
            if not isinstance(raw, Text) or re.fullmatch(_NUMBER, raw) is None:
                raise ValueError
            return float(raw)
        if isinstance(raw, bool) or not isinstance(raw, int | float):
            raise ValueError
        return float(raw)

    return read


def _switch(raw: Any) -> bool:
    if isinstance(raw, Text) and raw.lower() in _TRUTH:
        return _TRUTH[raw.lower()]
    if not isinstance(raw, bool):
        raise ValueError
    return raw


def _address(raw: Any) -> str:
    text = _text(raw)
    _, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise ValueError
    return text


def _place(raw: Any) -> str:
    text = _text(raw)
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name) or "/" in name:
        raise ValueError
    return text


def _unit(raw: Any) -> str:
    text = _text(raw)
    MemoryUnit.parse(text)
    return text


def _texts(raw: Any) -> list[str]:
    if isinstance(raw, Text):
        return [_text(one.strip()) for one in raw.split(",")]
    if not isinstance(raw, list):
        raise ValueError
    return [_text(one) for one in raw]


def _plugins(raw: Any) -> dict[str, dict[str, Any]]:
    found = json.loads(raw) if isinstance(raw, Text) else raw
    if not isinstance(found, dict):
        raise ValueError
    arguments = {_text(name): {} if its is None else its for name, its in found.items()}
    if not all(isinstance(its, dict) for its in arguments.values()):
        raise ValueError
    return arguments


def _paths(raw: Any) -> list[Path]:
    return [Path(one) for one in _texts(raw)]


class Kind(msgspec.Struct, frozen=True):
    """A type. ``words`` describe valid values, ``schema`` the same as JSON Schema; ``several``: the flag may be repeated."""

    metavar: str
    words: str
    read: Callable[[Any], Any]
    schema: dict[str, Any]
    number: bool = False
    several: bool = False
    show: Callable[[Any], str] = str

    @property
    def is_switch(self) -> bool:
        """Whether its flag takes no value: ``--x`` is true, ``--no-x`` false."""
        return self is SWITCH


def _shown_number(value: float) -> str:
    return f"{value:g}"


def _shown_list(value: list[Any]) -> str:
    return ",".join(map(str, value)) or "none"


_TIME_PATTERN: Final = r"^[0-9]+(\.[0-9]+)?(ms|s|m|h|d)$"
TEXT: Final = Kind("NAME", "a text", _text, {"type": "string", "minLength": 1})
CHOICE: Final = Kind("", "one of them", _text, {"type": "string"})
FILE: Final = Kind("FILE", "the path of a file", _path, {"type": "string", "minLength": 1})
FOLDER: Final = Kind("DIR", "the path of a folder", _path, {"type": "string", "minLength": 1})
SOCKET: Final = Kind("PATH", "the path of a socket", _path, {"type": "string", "minLength": 1})
INTEGER: Final = Kind("NUMBER", "a number", _integer, {"type": "integer"}, number=True)
MIB: Final = Kind("MIB", "a number of MiB", _integer, {"type": "integer"}, number=True)
SECONDS: Final = Kind(
    "SECONDS", "seconds (5, 500ms, 5m)", _span(1.0), {"type": ["number", "string"], "pattern": _TIME_PATTERN},
    number=True, show=_shown_number,
)  # fmt: skip
HOURS: Final = Kind(
    "HOURS", "hours (5, 30m, 7d)", _span(3600.0), {"type": ["number", "string"], "pattern": _TIME_PATTERN},
    number=True, show=_shown_number,
)  # fmt: skip
SWITCH: Final = Kind(
    "", "true or false", _switch, {"type": "boolean"}, show=lambda on: "true" if on else "false"
)
ADDRESS: Final = Kind(
    "HOST:PORT", "HOST:PORT, such as 127.0.0.1:9452", _address, {"type": "string", "pattern": ":[0-9]{1,5}$"}
)
PLACE: Final = Kind(
    "NAMESPACE/NAME", "NAMESPACE/NAME", _place, {"type": "string", "pattern": "^[^/]+/[^/]+$"}
)
UNIT: Final = Kind(
    "UNIT",
    "a memory unit: 1GiB or 128MiB",
    _unit,
    {"type": "string", "enum": ["1GiB", "128MiB", "GiB", "MiB"]},
)
TEXTS: Final = Kind(
    "NAME", "texts (a list in a file; in a variable with commas)", _texts,
    {"type": "array", "items": {"type": "string", "minLength": 1}}, several=True, show=_shown_list,
)  # fmt: skip
FILES: Final = Kind(
    "FILE", "paths (a list in a file; in a variable with commas)", _paths,
    {"type": "array", "items": {"type": "string", "minLength": 1}}, several=True, show=_shown_list,
)  # fmt: skip
PLUGINS: Final = Kind(
    "JSON", 'a mapping of plugin names to arguments: {"prefer-label": {"label": "disk"}}', _plugins,
    {"type": "object", "additionalProperties": {"type": ["object", "null"]}}, show=lambda its: json.dumps(its, sort_keys=True),
)  # fmt: skip
