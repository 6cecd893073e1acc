"""The entries of the pages about messages: what each is about, and which messages have none.

An entry is a row of a table whose first cell holds messages as code, with ``…`` for what is filled in; the cells behind it say why it
comes and what to do.
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
_LEAST_TOLD: Final = 6
#: The last cell may point to the one above, or to the message itself where that says what to do.
_POINTS: Final = frozenset({"as above", "as it says"})
OTHERS: Final = "words of others"
"""Below a heading that ends so stand messages of other programs, which the code does not have."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A message as a page has it, the cells beside it, and its place (``PAGE:LINE``)."""

    where: str
    text: str
    told: tuple[str, ...]
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
    """The messages that no entry is about; ``to_the_letter``: an entry holds the message, a wider one does not do."""
    texts = [entry.text for entry in known]
    wide = [] if to_the_letter else [text.split(ANY) for text in texts if _is_clear(text)]
    return [
        one for one in messages if not _is_held(one, texts) and not any(_fills(one.template, w) for w in wide)
    ]


def without_message(known: Iterable[Entry], messages: list[Message]) -> list[Entry]:
    """Entries about messages of several words that the code does not have any more."""
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


def says_nothing(known: Iterable[Entry]) -> list[Entry]:
    """Entries whose cells do not say why it comes and what to do."""
    return [
        entry
        for entry in known
        if len(entry.told) < 2
        or any(len(cell) < _LEAST_TOLD for cell in entry.told if cell not in _POINTS)
        or entry.told[0] in _POINTS
    ]


def _is_held(message: Message, texts: list[str]) -> bool:
    pieces = _pieces(message)
    longest = _longest(pieces)
    return any(longest in text and _holds(text, pieces) for text in texts)


def _pieces(message: Message) -> list[str]:
    """What is fixed in a message, without what joins it to others."""
    return message.template.strip(" ;,.:").split(ANY)


def _longest(pieces: list[str]) -> str:
    return max(pieces, key=len)


def _holds(text: str, pieces: list[str]) -> bool:
    """Whether the pieces are in the text, one behind the other."""
    at = 0
    for piece in pieces:
        at = text.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return True


def _fills(template: str, pieces: list[str]) -> bool:
    """Whether the template is the pieces, with something or nothing between them."""
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
