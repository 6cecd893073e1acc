"""Which commands of sentences and tables may be typed into a playground as they are, and the expected result of each."""

import re
from collections.abc import Iterable
from typing import Final

from documentation.blocks import Block
from documentation.inline import Inline
from documentation.understood.shell import ANYTHING

#: Complete read-only commands; not a command's name alone, nor one with an ellipsis.
_LOOKS: Final = re.compile(
    r"kubectl( -n [a-z-]+)? (get|describe|explain) \S|kubectl( -n [a-z-]+)? events|kubectl (auth whoami|config get-contexts)"
    r"|kubectl[- ]inspect[- ]cgpu\b|gpushare (doctor|inspect)\b|gpushare config (check|show|schema) \S|gpushare config schema$"
    r"|gpushare( [a-z-]+| ROLE)? --help$|make help$"
)
#: Commands that run until interrupted, or write into the reader's own folder.
_GOES_ON: Final = re.compile(r" (-w|--watch|--top)\b|>")
#: Kinds that a playground does not serve: its admission needs no policies.
_NOT_SERVED: Final = re.compile(r"admissionpolicies\b")
#: Values of words in capitals.
WORDS: Final = (
    ("NODE", "cgpu-t4"),
    ("POD", "large"),
    ("FILE", "gpushare.yaml"),
    ("ROLE", "scheduler"),
    ("NAME", "elasticquotatrees.scheduling.sigs.k8s.io"),
    ("PATH", "/readyz"),
)
#: A playground's parts are processes, so their objects do not exist; kubectl and the kind are right nevertheless.
_NO_OBJECT: Final = 1, ("Error from server (NotFound): …",)
#: Commands with another expected result than exit code 0: the code, if it is the same everywhere, and the output.
ENDS: Final[dict[str, tuple[int | None, tuple[str, ...]]]] = {
    "kubectl -n kube-system get ds gpushare-device-plugin-ds": _NO_OBJECT,
    "kubectl -n kube-system describe ds gpushare-device-plugin-ds": _NO_OBJECT,
    "kubectl -n kube-system describe service gpushare-dashboard": _NO_OBJECT,
    "kubectl -n kube-system get lease ack-co-scheduler": _NO_OBJECT,
    # Problems of the cluster, or of this machine as a node, are not the subject.
    "gpushare doctor": (None, ("cluster https://…", "…", "ok …installation…", "…")),
    "gpushare doctor node": (None, ("node …", "…", "…kubelet…", "…")),
}


def is_harmless(command: str) -> bool:
    """Whether it may be typed as it is."""
    left_out = (
        _GOES_ON.search(command)
        or _NOT_SERVED.search(command)
        or ANYTHING in [word.strip("'") for word in command.split()]
    )
    return bool(_LOOKS.match(command)) and not left_out


def block_of(command: Inline) -> Block:
    """A block with only the command."""
    code, shown = ENDS.get(command.text, (None, ()))
    # Optional parts are left out, unless in capitals.
    typed = re.sub(r" \[([^\]]+)\]", lambda found: f" {found[1]}" if found[1].isupper() else "", command.text)
    # Commands of a block are counted from the line below its fence.
    return Block(command.line - 1, "console", (f"$ {typed}", *shown), words=WORDS, code=code)


def chosen(commands: Iterable[Inline]) -> list[Inline]:
    """Commands that are typed: the first of equal ones."""
    found: dict[str, Inline] = {}
    for one in commands:
        if is_harmless(one.text):
            found.setdefault(one.text, one)
    return list(found.values())
