"""Whether a command that is typed is the one that a sentence says: word for word, with something where the sentence leaves it open."""

import re
import shlex
from functools import cache
from typing import Final

from documentation.understood.shell import ANYTHING

#: What a sentence leaves open: words in capitals, a path that is none, what the API server's proxy takes away before a page gets it.
_OPEN: Final = re.compile(
    rf"(?<![\w$])(?:NODE|POD|FILE|ROLE|NAME|PATH|DIR|CHART|KEY|VALUE|PRESET|VERSION)(?![\w])|/path/to/\w+|{ANYTHING}/proxy|{ANYTHING}"
)
#: kubectl's flag for a namespace, which what is typed may have.
_NAMESPACE: Final = re.compile(r"(?<=kubectl)(?: -n \S+| --namespace[= ]\S+)")
#: Where one command of a line ends and the next begins.
_BETWEEN: Final = re.compile(r"\s*(?:&&|\|\|?|;|\n|<\()\s*")
_BLANK: Final = "\0"


def says(text: str, typed: str) -> bool:
    """Whether ``typed``, or a command in it, is ``text`` with what that leaves open, and perhaps with more words behind it or behind one of it."""
    pattern = _pattern(text)
    lines = [typed, *_BETWEEN.split(typed)]
    if not _NAMESPACE.search(text):
        lines += [_NAMESPACE.sub("", line) for line in lines]
    return any(pattern.match(_joined(line)) for line in lines)


@cache
def _joined(line: str) -> str:
    """The words of a line, each with a mark behind it; none where a shell would wait for more."""
    try:
        return "".join(word + _BLANK for word in shlex.split(line, comments=True))
    except ValueError:
        return ""


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile("".join(map(_word, shlex.split(text))))


def _word(word: str) -> str:
    if word == ANYTHING:
        return rf"(?:[^{_BLANK}]+{_BLANK})*?"
    # The table of the examples is typed in their folder, pages in the checkout.
    folder = "(?:examples/)?" if word.endswith(".yaml") else ""
    fixed = map(re.escape, _OPEN.split(word))
    return folder + rf"[^{_BLANK}]+?".join(fixed) + rf"(?: [^{_BLANK}]*)?{_BLANK}"
