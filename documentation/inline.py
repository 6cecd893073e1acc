"""The commands in a page's sentences and tables, read from its Markdown.

A command is a span of code that begins with a program of ``PROGRAMS``, possibly after variables.
Fenced blocks are the subject of ``blocks``; first cells of troubleshooting tables are messages, the subject of ``entries``.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

#: Programs whose commands are collected.
PROGRAMS: Final = ("kubectl", "kubectl-inspect-cgpu", "helm", "gpushare", "make", "curl", "python", "pip")
#: Below it a table's first cells hold messages, except in the page that leads to the others.
MESSAGES: Final = "docs/troubleshooting/"
_CONTENTS: Final = f"{MESSAGES}index.md"
_SPAN: Final = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
_FENCE: Final = re.compile(r"^ *(`{3,}|~{3,})")
_FIRST_CELL: Final = re.compile(r"^\|((?:[^|\\]|\\.)*)\|")
_PARAGRAPH: Final = re.compile(r"^\|.*|(?:^[^|\n].*\n?)+", re.MULTILINE)
_BEGINS: Final = re.compile(rf"(?:[A-Z][A-Z0-9_]*=\S+ )*(?:{'|'.join(PROGRAMS)})(?: |$)")


@dataclass(frozen=True, slots=True)
class Inline:
    """A command in a line of a page, with single blanks."""

    page: str
    line: int
    text: str

    @property
    def where(self) -> str:
        """Page and line, as text."""
        return f"{self.page}:{self.line}"

    @property
    def is_named_alone(self) -> bool:
        """Whether it is only a program's name."""
        return self.text in PROGRAMS


def inline_commands(page: str, text: str) -> Iterator[Inline]:
    """All of a page, in its order."""
    prose = "\n".join(_prose(page, text.splitlines()))
    for line, code in _spans(prose, 1):
        if _BEGINS.match(code):
            yield Inline(page, line, code)


def _prose(page: str, lines: list[str]) -> Iterator[str]:
    """The lines, empty inside blocks, and without the messages of entries."""
    fence = ""
    for line in lines:
        found = _FENCE.match(line)
        if found and not fence:
            fence = found[1]
            yield ""
        elif fence:
            # A fence is closed by one of the same length with nothing after it.
            if found and found[1].startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
            yield ""
        elif page.startswith(MESSAGES) and page != _CONTENTS and (cell := _FIRST_CELL.match(line)):
            # A command in a message counts too: it is code within the message's code.
            yield f"|{_within(cell[1])}{line[cell.end(1) :]}"
        else:
            yield line


def _within(cell: str) -> str:
    return " ".join(
        inner[0] for found in _SPAN.finditer(cell) if len(found[1]) > 1 for inner in _SPAN.finditer(found[2])
    )


def _spans(text: str, line: int) -> Iterator[tuple[int, str]]:
    """(line, code) of each span of code. A span may cross line ends, but not the end of a paragraph or table row."""
    for paragraph in _PARAGRAPH.finditer(text):
        first = line + text.count("\n", 0, paragraph.start())
        for found in _SPAN.finditer(paragraph[0]):
            code = " ".join(found[2].replace("\\|", "|").split())
            yield first + paragraph[0].count("\n", 0, found.start()), code
