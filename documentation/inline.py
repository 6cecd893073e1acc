"""The commands that a page names in its sentences and tables, read from its Markdown.

A command is a span of code that begins with a program of ``PROGRAMS``, after variables that are set for it where there are some.
Fenced blocks are ``blocks``' subject, and what the first cells of troubleshooting hold are messages, which are ``entries``'.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

#: What the commands begin with that are looked for.
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
    """A command as it stands in a line of a page, its white space made one blank each."""

    page: str
    line: int
    text: str

    @property
    def where(self) -> str:
        """Page and line, for people."""
        return f"{self.page}:{self.line}"

    @property
    def is_named_alone(self) -> bool:
        """Whether it is a program's name and nothing more."""
        return self.text in PROGRAMS


def inline_commands(page: str, text: str) -> Iterator[Inline]:
    """All of a page, in its order."""
    prose = "\n".join(_prose(page, text.splitlines()))
    for line, code in _spans(prose, 1):
        if _BEGINS.match(code):
            yield Inline(page, line, code)


def _prose(page: str, lines: list[str]) -> Iterator[str]:
    """The lines, empty where they are a block's, and without the messages that entries are about."""
    fence = ""
    for line in lines:
        found = _FENCE.match(line)
        if found and not fence:
            fence = found[1]
            yield ""
        elif fence:
            # A fence is closed by one that is as long, with nothing behind it.
            if found and found[1].startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
            yield ""
        elif page.startswith(MESSAGES) and page != _CONTENTS and (cell := _FIRST_CELL.match(line)):
            # What a message says to type is a command all the same: it stands in code within the message's own.
            yield f"|{_within(cell[1])}{line[cell.end(1) :]}"
        else:
            yield line


def _within(cell: str) -> str:
    return " ".join(
        inner[0] for found in _SPAN.finditer(cell) if len(found[1]) > 1 for inner in _SPAN.finditer(found[2])
    )


def _spans(text: str, line: int) -> Iterator[tuple[int, str]]:
    """(line, code) of each span of code. One goes over the ends of lines, and of neither a paragraph nor a table's row."""
    for paragraph in _PARAGRAPH.finditer(text):
        first = line + text.count("\n", 0, paragraph.start())
        for found in _SPAN.finditer(paragraph[0]):
            code = " ".join(found[2].replace("\\|", "|").split())
            yield first + paragraph[0].count("\n", 0, found.start()), code
