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
    wide = [] if to_the_letter else [_wide(text) for text in texts]
    return [one for one in messages if not _are_about(texts, wide, [one.template], [_parts(one.template)])]


def without_message(known: Iterable[Entry], messages: list[Message]) -> list[Entry]:
    """Entries about messages of several words that the code does not have any more."""
    templates = [one.template for one in messages]
    parts = [_parts(template) for template in templates]
    return [
        entry
        for entry in known
        if not entry.of_others
        and len(WORD.findall(entry.text)) >= LEAST_WORDS
        and not _are_about([entry.text], [_wide(entry.text)], templates, parts)
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


def _are_about(
    texts: list[str], wide: list[re.Pattern[str] | None], templates: list[str], parts: list[re.Pattern[str]]
) -> bool:
    """Whether an entry of ``texts`` holds one of ``templates``, or is so wide that it is one of them itself.

    The patterns come compiled: a thousand entries by a thousand messages are more than ``re`` keeps.
    """
    return any(part.search(text) for part in parts for text in texts) or any(
        one.fullmatch(template) for one in wide if one for template in templates
    )


def _parts(template: str) -> re.Pattern[str]:
    return re.compile(_pattern(_core(template)), re.DOTALL)


def _wide(text: str) -> re.Pattern[str] | None:
    return re.compile(_pattern(text), re.DOTALL) if _is_clear(text) else None


def _core(template: str) -> str:
    """A template without what joins it to others."""
    return template.strip(" ;,.:")


def _is_clear(text: str) -> bool:
    return sum(map(str.isalpha, text.replace(ANY, ""))) >= _LEAST_LETTERS


def _pattern(template: str) -> str:
    return ".*".join(re.escape(part) for part in template.split(ANY))
