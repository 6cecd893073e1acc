"""Entries of the troubleshooting pages, and messages without one.

An entry is a table row whose first cell has messages as code, with ``…`` for what is filled in; the other cells say why and what to do.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from documentation.messages import ANY, LEAST_WORDS, WORD, Message

_CODE: Final = re.compile(r"(`+)(.+?)\1")
_SPLIT: Final = re.compile(r"(?<!\\)\|")
_LEAST_LETTERS: Final = 8
_LEAST_CELL: Final = 6
#: The last cell may refer to the row above, or to the message itself.
_POINTS: Final = frozenset({"as above", "as it says"})
OTHERS: Final = "words of others"
"""Headings with this end have messages of other programs."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A message as a page has it, the row's other cells, and its place (``PAGE:LINE``)."""

    where: str
    text: str
    cells: tuple[str, ...]
    of_others: bool = False


def entries(folder: Path) -> Iterator[Entry]:
    """All entries of the pages in ``folder``."""
    for page in sorted(set(folder.glob("*.md")) - {folder / "index.md"}):
        others = False
        for number, line in enumerate(page.read_text().splitlines(), 1):
            if line.startswith("#"):
                others = line.rstrip().lower().endswith(OTHERS)
            if line.startswith("|"):
                cells = [cell.strip() for cell in _SPLIT.split(line.strip())[1:-1]]
                for _, code in _CODE.findall(cells[0]):
                    text = " ".join(code.replace("\\|", "|").split())
                    yield Entry(f"{page.name}:{number}", text, tuple(cells[1:]), others)


def without_entry(
    messages: Iterable[Message], known: list[Entry], *, to_the_letter: bool = False
) -> list[Message]:
    """Messages without an entry; ``to_the_letter``: a wider entry does not suffice."""
    texts = [entry.text for entry in known]
    wide = [] if to_the_letter else [text.split(ANY) for text in texts if _is_clear(text)]
    return [
        one for one in messages if not _is_held(one, texts) and not any(_fills(one.template, w) for w in wide)
    ]


def without_message(known: Iterable[Entry], messages: list[Message]) -> list[Entry]:
    """Entries of several words whose message the code no longer has."""
    held = [(_longest(pieces), pieces) for pieces in map(_pieces, messages)]
    return [
        entry
        for entry in known
        if not entry.of_others
        and len(WORD.findall(entry.text)) >= LEAST_WORDS
        and not any(longest in entry.text and _holds(entry.text, pieces) for longest, pieces in held)
        and not (
            _is_clear(entry.text) and any(_fills(one.template, entry.text.split(ANY)) for one in messages)
        )
    ]


def incomplete(known: Iterable[Entry]) -> list[Entry]:
    """Entries that do not say why and what to do."""
    return [
        entry
        for entry in known
        if len(entry.cells) < 2
        or any(len(cell) < _LEAST_CELL for cell in entry.cells if cell not in _POINTS)
        or entry.cells[0] in _POINTS
    ]


def _is_held(message: Message, texts: list[str]) -> bool:
    pieces = _pieces(message)
    longest = _longest(pieces)
    return any(longest in text and _holds(text, pieces) for text in texts)


def _pieces(message: Message) -> list[str]:
    """The fixed parts of a message, without separators at its ends."""
    return message.template.strip(" ;,.:").split(ANY)


def _longest(pieces: list[str]) -> str:
    return max(pieces, key=len)


def _holds(text: str, pieces: list[str]) -> bool:
    """Whether the pieces occur in the text in this order."""
    at = 0
    for piece in pieces:
        at = text.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return True


def _fills(template: str, pieces: list[str]) -> bool:
    """Whether the template consists of the pieces, with anything between them."""
    if len(pieces) == 1:
        return template == pieces[0]
    first, *between, last = pieces
    inner = len(template) - len(last)
    return (
        template.startswith(first)
        and inner >= len(first)
        and template.endswith(last)
        and _holds(template[len(first) : inner], between)
    )


def _is_clear(text: str) -> bool:
    return sum(map(str.isalpha, text.replace(ANY, ""))) >= _LEAST_LETTERS
