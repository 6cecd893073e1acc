"""Documents for programs, as JSON or YAML, with the standard library only: the single-file plugin has nothing else."""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

#: Plain scalars that YAML 1.1 or 1.2 does not read as strings.
_NOT_TEXT: Final = re.compile(
    r"[-+.\d].*|~|null|true|false|yes|no|on|off|y|n|.*[:#\[\]{},&*!|>'\"%@`\\].*|.*\s|\s.*|[-?=<].*|",
    re.IGNORECASE | re.DOTALL,
)


def written(document: "dict[str, Any]", form: str) -> str:
    """``document`` as ``json`` or ``yaml``, with a final line end."""
    if form == "json":
        return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    return "\n".join(_lines(document)) + "\n"


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _entry(f"{_scalar(str(key))}:", item, nested=isinstance(item, dict))
    elif isinstance(value, (list, tuple)) and value:
        for item in value:
            first = True
            for line in _lines(item):
                yield f"{'- ' if first else '  '}{line}"
                first = False
    else:
        yield _scalar(value)


def _entry(head: str, item: Any, *, nested: bool) -> Iterator[str]:
    if isinstance(item, (dict, list, tuple)) and item:
        yield head
        for line in _lines(item):
            yield f"  {line}" if nested else line
    else:
        yield f"{head} {_scalar(item)}"


def _scalar(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "[]"
    if isinstance(value, dict):
        return "{}"
    if isinstance(value, str):
        # A JSON string is also a YAML string.
        plain = value.isprintable() and not _NOT_TEXT.fullmatch(value)
        return value if plain else json.dumps(value, ensure_ascii=not value.isprintable())
    return json.dumps(value)
