"""The command line, in kubectl's manner.

Written by hand: ``argparse`` takes longer to import than the rest of the command takes to run, and
knows neither ``-ojson`` beside ``-dw`` nor flags that are handed on.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from gpushare.inspect.errors import UsageError

HELP: Final = """\
Show how the GPU memory of the cluster's nodes is shared out.

Usage:
  kubectl inspect cgpu [NODE] [flags]

Examples:
  kubectl inspect cgpu                  # a row per node
  kubectl inspect cgpu -d               # and per node a row per pod
  kubectl inspect cgpu -d NODE          # of one node
  kubectl inspect cgpu -o wide          # with compute per GPU, mode, GPU models and health
  kubectl inspect cgpu -o json          # for programs (or yaml); docs/guide/inspect.md has the schema
  kubectl inspect cgpu -w               # again whenever something changes
  kubectl inspect cgpu --fragmentation  # who waits although there is room in all, and what would have to move
  kubectl inspect cgpu --advise         # what workloads should ask for, by what they have used

Flags:
  -d, --details             a row per pod
  -o, --output=FORMAT       wide, json or yaml
  -w, --watch               stay, and show again on every change
      --interval=SECONDS    how often --watch looks (default 2)
      --fragmentation       the pods that wait, and whose moves would let them in
      --advise              memory and compute for each workload, from what it used
      --margin=PERCENT      on top of what was used (default 15)
      --least-history=TIME  that a pod must have been seen for: 90s, 30m, 1h (default), 1d
      --prometheus=URL      ask it for what was used, not the node agents; a path is asked through the API server
      --window=TIME         how far back to ask it (default 7d)
  -n, --namespace=NAME      name only the pods of this namespace; sums stay those of all pods
  -A, --all-namespaces      name the pods of all namespaces (the default)
  -h, --help                this text

Handed on to kubectl: --context --kubeconfig --cluster --user --server (-s) --token --as --as-group
  --as-uid --certificate-authority --client-certificate --client-key --insecure-skip-tls-verify
  --tls-server-name --request-timeout --cache-dir --disable-compression --match-server-version

$KUBECTL names the kubectl to use, if it is not the one on PATH.
Exit status: 0 shown, 1 not possible (the reason is on stderr), 2 wrong command line.
"""

FORMATS: Final = ("wide", "json", "yaml")

_SWITCHES: Final = {
    "-d": "--details",
    "-w": "--watch",
    "-A": "--all-namespaces",
    "-h": "--help",
}
_VALUED: Final = {"-o": "--output", "-n": "--namespace", "-s": "--server"}
_OWN_SWITCHES: Final = frozenset((*_SWITCHES.values(), "--fragmentation", "--advise"))
_ADVICE: Final = ("--margin", "--least-history", "--prometheus", "--window")
_OWN_VALUED: Final = frozenset({"--output", "--namespace", "--interval", *_ADVICE})
_KUBECTL_SWITCHES: Final = frozenset(
    {"--insecure-skip-tls-verify", "--disable-compression", "--match-server-version"}
)
_KUBECTL_VALUED: Final = frozenset(
    {
        "--context",
        "--kubeconfig",
        "--cluster",
        "--user",
        "--server",
        "--token",
        "--as",
        "--as-group",
        "--as-uid",
        "--certificate-authority",
        "--client-certificate",
        "--client-key",
        "--tls-server-name",
        "--request-timeout",
        "--cache-dir",
    }
)
_TRUE: Final = {"true": True, "1": True, "t": True, "false": False, "0": False, "f": False}
_SHORTEST_INTERVAL_S: Final = 0.1
_LONGEST_INTERVAL_S: Final = 86_400.0


class Options(NamedTuple):
    """What was asked for. ``kubectl_flags`` are handed on as they stand."""

    node: str | None = None
    details: bool = False
    output: str = ""
    watch: bool = False
    interval_s: float = 2.0
    namespace: str | None = None
    help: bool = False
    fragmentation: bool = False
    advise: bool = False
    advice: tuple[tuple[str, str], ...] = ()
    """How to advise, by the names of flags, as they were written."""
    kubectl_flags: tuple[str, ...] = ()


def parse(arguments: Sequence[str]) -> Options:
    """Read a command line (without the program's name); raises ``UsageError``."""
    switches: dict[str, bool] = {}
    values: dict[str, str] = {}
    kubectl_flags: list[str] = []
    nodes: list[str] = []
    for name, value in _words(arguments):
        if name is None:
            nodes.append(value)
        elif name in _OWN_SWITCHES:
            switches[name] = _truth(name, value)
        elif name in _OWN_VALUED:
            values[name] = value
        else:
            kubectl_flags.append(f"{name}={value}")
    if len(nodes) > 1:
        raise UsageError("", f"one node at most can be named, not {len(nodes)}: {' '.join(nodes)}")
    if nodes and not nodes[0]:
        raise UsageError("", "the name of the node is empty")
    output = values.get("--output", "")
    if output and output not in FORMATS:
        raise UsageError("", f"unknown output format {output!r}; use one of {', '.join(FORMATS)}")
    fragmentation = switches.get("--fragmentation", False)
    if fragmentation and (nodes or output or switches.get("--details")):
        raise UsageError(
            "", "--fragmentation is about the whole cluster, as a table: without NODE, -d and -o"
        )
    advise = switches.get("--advise", False)
    if advise and (nodes or fragmentation or switches.get("--details") or output == "wide"):
        raise UsageError("", "--advise is about all workloads: without NODE, -d, --fragmentation and -o wide")
    advice = tuple((name, values[name]) for name in _ADVICE if name in values)
    if advice and not advise:
        raise UsageError("", f"{advice[0][0]} goes with --advise")
    return Options(
        node=nodes[0] if nodes else None,
        details=switches.get("--details", False),
        output=output,
        watch=switches.get("--watch", False),
        interval_s=_interval_s(values.get("--interval", "2")),
        namespace=None if switches.get("--all-namespaces") else values.get("--namespace") or None,
        help=switches.get("--help", False),
        fragmentation=fragmentation,
        advise=advise,
        advice=advice,
        kubectl_flags=tuple(kubectl_flags),
    )


def _words(arguments: Sequence[str]) -> Iterator[tuple[str | None, str]]:
    """(long name, value) of every flag, (``None``, word) of every other word."""
    words = iter(arguments)
    for word in words:
        if word == "--":
            yield from ((None, rest) for rest in words)
        elif word.startswith("--"):
            yield _long(word, words)
        elif word.startswith("-") and word != "-":
            yield from _short(word, words)
        else:
            yield None, word


def _long(word: str, words: Iterator[str]) -> tuple[str, str]:
    name, given, value = word.partition("=")
    if name in _OWN_SWITCHES or name in _KUBECTL_SWITCHES:
        return name, value if given else "true"
    if name in _OWN_VALUED or name in _KUBECTL_VALUED:
        return name, value if given else _next(name, words)
    raise UsageError("", f"unknown flag {name}")


def _short(word: str, words: Iterator[str]) -> Iterator[tuple[str, str]]:
    letters = word[1:]
    while letters:
        letter, letters = f"-{letters[0]}", letters[1:]
        if letter in _VALUED:
            yield _VALUED[letter], letters.removeprefix("=") if letters else _next(letter, words)
            return
        if letter not in _SWITCHES:
            raise UsageError("", f"unknown flag {letter}{f' in {word}' if len(word) > 2 else ''}")
        if letters.startswith("="):
            yield _SWITCHES[letter], letters[1:]
            return
        yield _SWITCHES[letter], "true"


def _next(name: str, words: Iterator[str]) -> str:
    value = next(words, None)
    if value is None:
        raise UsageError("", f"flag {name} needs a value")
    return value


def _truth(name: str, value: str) -> bool:
    try:
        return _TRUE[value.lower()]
    except KeyError:
        raise UsageError("", f"flag {name} is true or false, not {value!r}") from None


def _interval_s(text: str) -> float:
    if re.fullmatch(r"\d{1,6}(\.\d{1,6})?s?", text, re.ASCII):
        interval_s = float(text.removesuffix("s"))
        if _SHORTEST_INTERVAL_S <= interval_s <= _LONGEST_INTERVAL_S:
            return interval_s
    raise UsageError(
        "",
        f"--interval={text} is not a number of seconds from {_SHORTEST_INTERVAL_S} to {_LONGEST_INTERVAL_S:.0f}",
    )
