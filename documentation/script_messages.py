"""Messages of the dashboard's scripts when something is missing, refused or lost: texts of several words that are not names.

A script holds names of views, columns and figures, words for screen readers, and messages. Names are recognised by their position; every
other text of three words or more is a message.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from documentation.messages import ANY, LEAST_WORDS, WORD, Message

_PIECE: Final = re.compile(
    r"""(?P<passed_over>/\*.*?\*/|//[^\n]*|\s+)|(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
    r"""|(?P<word>[\w$-]*[\w$])|(?P<other>.)""",
    re.DOTALL | re.VERBOSE,
)
_PATTERN: Final = re.compile(r"/(?![/*])(?:[^/\\\n\[]|\\.|\[(?:[^\]\\\n]|\\.)*\])+/\w*")
#: After one of these a slash begins a pattern instead of dividing.
_BEFORE_PATTERN: Final = frozenset("(,=:[!&|?{};")
_LETTER: Final = re.compile(r"\w")
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
#: Fields, attributes and variables that hold a name, a style, or words for screen readers.
_NAMED: Final = frozenset(
    {
        "class",
        "aria-label",
        "aria-roledescription",
        "title",
        "placeholder",
        "label",
        "name",
        "text",
        "transform",
    }
)
#: Functions whose text is a name, a selector, or words for screen readers.
_NAMING: Final = frozenset(
    {
        "matchMedia",
        "querySelector",
        "querySelectorAll",
        "closest",
        "number",
        "tile",
        "fact",
        "lines",
        "asked",
        "announce",
    }
)
_HEADINGS: Final = frozenset({"h1", "h2", "h3", "summary"})


@dataclass(frozen=True, slots=True)
class _Text:
    """A text, its start, and the four pieces before it, the nearest last."""

    at: int
    template: str
    before: tuple[str, str, str, str]

    @property
    def is_name(self) -> bool:
        """Whether it is in the position of a name: ``title: "…"``, ``h("h2", null, "…")``, ``fact("…")``."""
        fourth, _, second, first = self.before
        return (
            (first in {":", "="} and second in _NAMED)
            or (first == "(" and (second in _NAMING or (second == "." and fourth in _NAMING)))
            or (first == "," and (second in _NAMED or (second == "null" and fourth in _HEADINGS)))
        )


def from_scripts(folder: Path) -> list[Message]:
    """Of all scripts in ``folder``."""
    found: list[Message] = []
    for path in sorted(folder.glob("*.js")):
        found += of_script(path.name, path.read_text())
    return found


def of_script(name: str, source: str) -> list[Message]:
    """The messages of one script."""
    reader = _Reader(source)
    reader.read()
    return [
        Message(f"{name}:{source.count(chr(10), 0, one.at) + 1}", " ".join(one.template.split()))
        for one in sorted(reader.found, key=lambda one: one.at)
        if " " in one.template and len(WORD.findall(one.template)) >= LEAST_WORDS and not one.is_name
    ]


class _Reader:
    """Reads a script piece by piece."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._at = 0
        self.found: list[_Text] = []

    def read(self) -> None:
        """Up to the bracket that closes the current one, or to the end."""
        before = ["", "", "", ";"]
        depth = 0
        while self._at < len(self._source) and (depth or self._source[self._at] != "}"):
            piece = self._next(before)
            if piece:
                depth += (piece == "{") - (piece == "}")
                before.append(piece)

    def _next(self, before: list[str]) -> str:
        """One piece; empty for space and comments. Texts with a letter are returned without quotes."""
        start = self._at
        if self._source[start] == "`":
            return self._filled_in(_last(before))
        if before[-1] in _BEFORE_PATTERN and (pattern := _PATTERN.match(self._source, start)):
            self._at = pattern.end()
            return pattern[0]
        piece = _PIECE.match(self._source, start)
        assert piece is not None
        self._at = piece.end()
        if piece["text"] is None:
            return "" if piece["passed_over"] is not None else piece[0]
        text = _ESCAPED.sub(r"\1", piece["text"][1:-1])
        self.found.append(_Text(start, text, _last(before)))
        return text if _LETTER.search(text) else '""'

    def _filled_in(self, before: tuple[str, str, str, str]) -> str:
        """A text between backquotes, ``…`` for what is filled in; texts in there are read, too."""
        start, template = self._at, ""
        self._at += 1
        while self._source[self._at] != "`":
            if self._source.startswith("${", self._at):
                self._at += 2
                self.read()
                template += ANY
            else:
                self._at += self._source[self._at] == "\\"
                template += self._source[self._at]
            self._at += 1
        self._at += 1
        self.found.append(_Text(start, template, before))
        return template if _LETTER.search(template) else '""'


def _last(pieces: list[str]) -> tuple[str, str, str, str]:
    fourth, third, second, first = pieces[-4:]
    return fourth, third, second, first
