"""Whether a typed command is that of a sentence: word for word, with values for the sentence's placeholders."""

import re
import shlex
from functools import cache
from typing import Final

from documentation.understood.shell import ANYTHING

#: Placeholders of a sentence: words in capitals, example paths, the prefix that the API server's proxy removes.
_OPEN: Final = re.compile(
    rf"(?<![\w$])(?:NODE|POD|FILE|ROLE|NAME|PATH|DIR|CHART|KEY|VALUE|PRESET|VERSION)(?![\w])|/path/to/\w+|{ANYTHING}/proxy|{ANYTHING}"
)
#: kubectl's flag for a namespace, which the typed command may have.
_NAMESPACE: Final = re.compile(r"(?<=kubectl)(?: -n \S+| --namespace[= ]\S+)")
#: Where one command of a line ends and the next begins.
_BETWEEN: Final = re.compile(r"\s*(?:&&|\|\|?|;|\n|<\()\s*")
_BLANK: Final = "\0"


def says(text: str, typed: str) -> bool:
    """Whether ``typed``, or a command in it, is ``text`` with its placeholders filled in, possibly with more words after it or after one of its words."""
    pattern = _pattern(text)
    lines = [typed, *_BETWEEN.split(typed)]
    if not _NAMESPACE.search(text):
        lines += [_NAMESPACE.sub("", line) for line in lines]
    return any(pattern.match(_joined(line)) for line in lines)


@cache
def _joined(line: str) -> str:
    """The words of a line, each followed by a mark; empty for an incomplete line."""
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
