"""The reference of the charts' values, read from ``values.yaml`` and its comments."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_HEAD: Final = """\
# Values of the charts

Every value of both charts with its default, from their `values.yaml`. This page is generated: `make docs` writes it. An
unknown or wrong value is refused by the chart's schema, with what is possible. `helm show values charts/CHART` prints the same.
"""
_KEY: Final = re.compile(r"^( *)([\w-]+):(?: +(.*?))? *$")
CHARTS: Final = ("ack-ai-installer", "ack-co-scheduler")


@dataclass(frozen=True, slots=True)
class Value:
    """A value: its path with dots, its default as written (empty if it has nested values), its comment."""

    path: str
    default: str
    description: str


def page(charts: Path) -> str:
    """The page's Markdown, from ``CHART/values.yaml`` of each chart in the folder ``charts``."""
    parts = [_HEAD]
    parts += [
        f"## {chart}\n\n| value | default | |\n|---|---|---|\n{_rows(charts / chart / 'values.yaml')}"
        for chart in CHARTS
    ]
    return "\n".join(parts)


def _rows(path: Path) -> str:
    return "".join(
        f"| `{value.path}` | {_code(value.default)} | {_cell(value.description)} |\n"
        for value in values(path.read_text())
    )


def _code(text: str) -> str:
    return f"`{_cell(text)}`" if text else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def values(text: str) -> Iterator[Value]:
    """The values of a file in block style, in order; groups only if they have a comment."""
    inside: list[tuple[int, str]] = []
    comment: list[str] = []
    held: Value | None = None
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("#"):
            comment.append(stripped.lstrip("#").strip().removeprefix("-- "))
        elif not stripped:
            comment = []
        elif found := _KEY.match(line):
            indent = len(found[1])
            inside = [one for one in inside if one[0] < indent]
            path = ".".join([*(name for _, name in inside), found[2]])
            # A group without a comment is only a prefix of other paths.
            if held and (held.default or held.description or not path.startswith(f"{held.path}.")):
                yield held
            held = Value(path, found[3] or "", " ".join(comment))
            comment = []
            if not found[3]:
                inside.append((indent, found[2]))
        elif held and stripped.startswith("- "):
            # A list in block style is the default of the value above it.
            joined = f"{held.default}, {stripped[2:]}" if held.default else stripped[2:]
            held = Value(held.path, joined, held.description)
    if held:
        yield held
