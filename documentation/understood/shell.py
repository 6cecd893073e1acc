"""What a shell makes of a command: its parts between pipes, without redirections, with something in the place of each placeholder."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

#: A placeholder of a page for any word.
ANYTHING: Final = "…"
#: Values of placeholders that not every word can replace.
_STANDING: Final = {"ROLE": "scheduler", "CHART": "ack-ai-installer", "N": "1"}
_PLACEHOLDER: Final = re.compile(r"(?<![\w$.{-])[A-Z][A-Z_]*(?![\w=])")
#: What may be left out, as usage lines write it.
_OPTIONAL: Final = re.compile(r"(?<= )\[([^\]]+)\]")
_VARIABLE: Final = re.compile(r"([A-Z][A-Z0-9_]*)=")
_BETWEEN: Final = frozenset({"|", "&&", "||", ";"})


class Misunderstood(Exception):
    """An invalid command; the text says why."""


@dataclass(frozen=True, slots=True)
class Part:
    """A program with its words, and the variables that are set for it."""

    program: str
    words: list[str]
    variables: tuple[str, ...] = ()


def parts(command: str) -> Iterator[Part]:
    """The parts of a command line; raises ``Misunderstood`` where a shell would not take it."""
    lexer = shlex.shlex(_OPTIONAL.sub(_assigned, command), posix=True, punctuation_chars="|&;<>")
    lexer.commenters = ""
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError as error:
        raise Misunderstood(f"a shell does not take it: {error}") from None
    part: list[str] = []
    for word in [*words, ";"]:
        if word not in _BETWEEN:
            part.append(word)
        elif part:
            yield _part(part)
            part = []


def _assigned(optional: re.Match[str]) -> str:
    """``[ROLE]`` is tried as given, ``[options]`` as left out."""
    return optional[1] if optional[1].isupper() else ""


def _part(words: list[str]) -> Part:
    at = next((index for index, word in enumerate(words) if word in ("<", ">", ">>")), len(words))
    words = words[:at]
    variables = []
    while words and (found := _VARIABLE.match(words[0])):
        variables.append(found[1])
        words = words[1:]
    return Part(words[0] if words else "", [filled(word) for word in words[1:]], tuple(variables))


def filled(word: str) -> str:
    """A word with something in the place of its placeholders: words in capitals, and ``…`` within a word."""
    if word == ANYTHING:
        return word
    named = _PLACEHOLDER.sub(lambda found: _STANDING.get(found[0], found[0].lower().replace("_", "-")), word)
    return named.replace(ANYTHING, "x")
