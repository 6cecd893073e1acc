"""Messages of the libraries in containers, the arbiter on nodes and the fake driver: texts of several words in their C sources.

Parts of messages count too (``no regular file``, which another function appends to a path). Comments, the
preprocessor's lines and messages of the compiler are left out.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from documentation.messages import ANY, WORD, Message

_LEAST_WORDS: Final = 2
_TOKEN: Final = re.compile(
    r"""(?P<passed_over>/\*.*?\*/|//[^\n]*|^[ \t]*\#(?:[^\n\\]|\\.)*|'(?:[^'\\\n]|\\.)*'|\s+)"""
    r"""|"(?P<text>(?:[^"\\\n]|\\.)*)"|(?P<word>[A-Za-z_]\w*)|(?P<other>.)""",
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
_FILLED_IN: Final = re.compile(r"%(?:[-+ #0]*\d*(?:\.(?:\d+|\*))?(?:hh|ll|[hlzj])?[sduxci]|%)")
_ESCAPED: Final = re.compile(r"\\(.)")
#: Calls whose text is for compiler or linker.
_OF_COMPILERS: Final = frozenset({"_Static_assert", "__asm__", "__attribute__"})
#: Sources of the fake driver → why their texts need no entry.
INTERNAL: Final = {
    "cuda/entry/error_table.h": "CUDA's own words for its results, as cuGetErrorString has them",
    "cuda/module/ptx.c": "a comment in a program for a GPU that the driver looks for",
    "description/keys.c": "words for what a key may be, within other messages",
    "nvml/export_table.c": "a name of a process, and one in a trace of calls",
    "nvml/session.c": "NVML's own words for its results, as nvmlErrorString has them",
}


def from_c(folder: Path) -> list[Message]:
    """Of all C sources in ``folder`` and below it."""
    found: list[Message] = []
    for path in sorted([*folder.rglob("*.c"), *folder.rglob("*.h")]):
        name = str(path.relative_to(folder))
        if name not in INTERNAL:
            found += of_source(name, path.read_text())
    return found


def of_source(name: str, source: str) -> list[Message]:
    """The messages of one source; adjacent texts are one, a macro between them is filled in."""
    texts = ((line, " ".join(text.split())) for line, text in _texts(source))
    return [Message(f"{name}:{line}", text) for line, text in texts if _is_for_people(text)]


def _is_for_people(text: str) -> bool:
    return " " in text and len(WORD.findall(text)) >= _LEAST_WORDS


def _texts(source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of everything that is composed of texts and macros."""
    calls: list[str] = []
    parts: list[str] = []
    line, before = 0, ""
    has_text = False
    for token in _TOKEN.finditer(source):
        if token["passed_over"] is not None:
            continue
        text, word = token["text"], token["word"]
        if text is not None or (word is not None and word.isupper()):
            if text is not None and not has_text:
                line = source.count("\n", 0, token.start()) + 1
            has_text |= text is not None
            parts.append(ANY if text is None else _template(text))
            before = word or ""
            continue
        if has_text and not _OF_COMPILERS & set(calls):
            yield line, "".join(parts)
        parts, has_text = [], False
        if token["other"] == "(":
            calls.append(before)
        elif token["other"] == ")" and calls:
            calls.pop()
        before = word or ""


def _template(text: str) -> str:
    filled_in = _FILLED_IN.sub(lambda one: "%" if one[0] == "%%" else ANY, text)
    return _ESCAPED.sub(lambda one: " " if one[1] in "nt" else one[1], filled_in)
