"""Messages of the charts: of their templates, policies and CustomResourceDefinitions.

A policy composes its messages by an expression, ``'it has ' + string(n) + ' GPUs'``: readers see the texts, with
``…`` for the rest. Texts within what is filled in (``ok ? 'a node' : 'two nodes'``) are messages of their own.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from documentation.messages import ANY, LEAST_WORDS, WORD, Message

_SAYS: Final = re.compile(r"^\s*(?:- )?message(Expression)?: *(>-|\|-|)\s*(.*)$")
_FAILS: Final = re.compile(r"fail\s+(?:\(printf\s+)?\"((?:[^\"\\]|\\.)*)\"")
_FILLED_IN: Final = re.compile(r"%[vsdq]|%%")
_TEMPLATE: Final = re.compile(r"\{\{.*?\}\}")
_OPENING: Final = "([{"
_CLOSING: Final = ")]}"


def from_charts(charts: Path) -> list[Message]:
    """Of all templates below ``charts``."""
    found: list[Message] = []
    for path in sorted([*charts.rglob("*.yaml"), *charts.rglob("*.tpl")]):
        if "templates" in path.parts:
            found += _of_template(str(path.relative_to(charts)), path.read_text())
    return found


def _of_template(name: str, text: str) -> Iterator[Message]:
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        where = f"{name}:{number}"
        for refused in _FAILS.findall(line):
            yield Message(where, _FILLED_IN.sub(lambda one: "%" if one[0] == "%%" else ANY, refused))
        if said := _SAYS.match(line):
            text = said[3] or " ".join(_indented(lines, number, len(line) - len(line.lstrip())))
            text = _TEMPLATE.sub(ANY, text)
            if text.startswith("description:"):
                continue
            for one in of_expression(text) if said[1] else [text.strip("'\"")]:
                if _is_for_people(one):
                    yield Message(where, " ".join(one.split()))


def of_expression(source: str) -> list[str]:
    """The messages that a CEL expression composes, the whole one first."""
    found: list[str] = []
    for alternative in _split(source, ",?:"):
        if "'" not in alternative:
            continue
        whole, inner = "", []
        for part in _split(alternative, "+"):
            text = _text(part)
            whole += ANY if text is None else text
            if text is None:
                inner += [one for group in _groups(part) for one in of_expression(group)]
        found += [whole, *inner]
    return [one for one in found if _is_for_people(one)]


def _is_for_people(text: str) -> bool:
    return " " in text and len(WORD.findall(text)) >= LEAST_WORDS


def _text(part: str) -> str | None:
    """A part of a sum, if it is only a text."""
    part = part.strip()
    if part[:1] != "'" or _end_of_text(part, 0) != len(part):
        return None
    return part[1:-1].replace("\\'", "'")


def _split(source: str, separators: str) -> list[str]:
    """``source`` cut at ``separators`` outside of texts and brackets."""
    parts, start, depth, at = [], 0, 0, 0
    while at < len(source):
        one = source[at]
        if one == "'":
            at = _end_of_text(source, at)
            continue
        depth += (one in _OPENING) - (one in _CLOSING)
        if not depth and one in separators:
            parts.append(source[start:at])
            start = at + 1
        at += 1
    return [*parts, source[start:]]


def _groups(source: str) -> Iterator[str]:
    """The contents of the outermost brackets of ``source``."""
    start, depth, at = 0, 0, 0
    while at < len(source):
        one = source[at]
        if one == "'":
            at = _end_of_text(source, at)
            continue
        if one in _OPENING:
            start = start if depth else at + 1
            depth += 1
        elif one in _CLOSING:
            depth -= 1
            if not depth:
                yield source[start:at]
        at += 1


def _end_of_text(source: str, start: int) -> int:
    """The position after the text that begins at ``start``."""
    at = start + 1
    while at < len(source) and source[at] != "'":
        at += 2 if source[at] == "\\" else 1
    return at + 1


def _indented(lines: list[str], at: int, indent: int) -> Iterator[str]:
    for line in lines[at:]:
        if line.strip() and len(line) - len(line.lstrip()) <= indent:
            return
        yield line.strip()
