"""Parser of the command line, with kubectl's conventions.

Written by hand: importing ``argparse`` takes longer than the rest of the command. It also supports neither ``-ojson`` together
with ``-dw`` nor flags that are passed through to kubectl.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from gpushare.inspect.errors import UsageError

HELP: Final = """\
Show GPU allocations of the cluster's nodes and pods.

Usage:
  kubectl inspect cgpu [NODE] [flags]
  kubectl inspect cgpu completion bash|zsh|fish

Examples:
  kubectl inspect cgpu                  # a row per node
  kubectl inspect cgpu -d               # and per node a row per pod
  kubectl inspect cgpu -d NODE          # of one node
  kubectl inspect cgpu --all            # also the nodes whose GPUs another device plugin serves
  kubectl inspect cgpu -o wide          # with compute per GPU, mode, GPU models and health
  kubectl inspect cgpu -o json          # for programs (or yaml); format: docs/reference/inspect-json.md
  kubectl inspect cgpu -w               # refreshed on every change
  kubectl inspect cgpu --fragmentation  # pods that are pending although free memory suffices in total, and which moves would admit them
  kubectl inspect cgpu --recommend      # requests recommended from usage history
  kubectl inspect cgpu --why POD        # why the scheduler chose the pod's node, or why the pod is pending
  kubectl inspect cgpu --pending        # every pending pod: age, reason, suggestion
  kubectl inspect cgpu --pods           # every pod on a GPU: allocated and used memory and compute
  kubectl inspect cgpu --top            # the same, live, highest usage first

Flags:
  -d, --details             a row per pod
      --all                 nodes of other device plugins, too
  -o, --output=FORMAT       wide, json or yaml
  -w, --watch               keep running, and refresh on every change
      --interval=SECONDS    refresh interval of --watch and --top (default 2)
      --fragmentation       pending pods, and the moves that would admit them
      --recommend           recommended memory and compute of each workload
      --headroom=PERCENT    added to the usage (default 15)
      --min-history=TIME    minimum history of a pod: 90s, 30m, 1h (default), 1d
      --prometheus=URL      read usage from there instead of the node agents; a path is one of the API server's proxy
      --window=TIME         length of the usage history: 1h, 7d (default: all that agents have; 7d with Prometheus)
      --why=POD             the scheduler's decision about a pod ([NAMESPACE/]NAME or pod/NAME); with -d the result for every node
      --pending             pending pods, each with reason and suggestion
      --pods                pods on GPUs: allocated and used
      --top                 the same, live; keys: m by memory, c by compute, q to quit; with -o json one document
      --scheduler=NAMESPACE/NAME  the Service of the scheduler (default kube-system/ack-co-scheduler)
      --config=FILE         persistent settings, JSON or YAML, in section inspect: docs/guide/configuration.md
  -n, --namespace=NAME      list only pods of this namespace; sums count all pods
  -A, --all-namespaces      list pods of all namespaces (the default)
  -h, --help                this text

Passed to kubectl: --context --kubeconfig --cluster --user --server (-s) --token --as --as-group
  --as-uid --certificate-authority --client-certificate --client-key --insecure-skip-tls-verify
  --tls-server-name --request-timeout --cache-dir --disable-compression --match-server-version

$GPUSHARE_INSPECT_SCHEDULER, _INTERVAL, _HEADROOM, _MIN_HISTORY, _PROMETHEUS and _WINDOW set defaults of these flags, and
$GPUSHARE_CONFIG names the file. A flag overrides a variable, a variable the file.
$KUBECTL names the kubectl to use, if it is not the one on PATH. Colours are used on terminals only; $NO_COLOR turns them off.
Exit status: 0 success, 1 failure (the reason is on stderr), 2 wrong command line, 130 interrupted,
  141 output closed by its reader.
"""

FORMATS: Final = ("wide", "json", "yaml")

_SWITCHES: Final = {
    "-d": "--details",
    "-w": "--watch",
    "-A": "--all-namespaces",
    "-h": "--help",
}
_VALUED: Final = {"-o": "--output", "-n": "--namespace", "-s": "--server"}
#: Flags that select another view than the table of nodes; mutually exclusive.
VIEWS: Final = ("--fragmentation", "--recommend", "--why", "--pending", "--pods", "--top")
SCHEDULER: Final = "kube-system/ack-co-scheduler"
INTERVAL_S: Final = 2.0
HEADROOM: Final = 15
MIN_HISTORY: Final = "1h"
SHORTEST_INTERVAL_S: Final = 0.1
LONGEST_INTERVAL_S: Final = 86_400.0
MOST_HEADROOM: Final = 400
#: Patterns of values.
LENGTH: Final = r"\d{1,6}[smhd]"
WINDOW: Final = r"(?!0+[smhd])\d{1,6}[smhd]"
PROMETHEUS: Final = r"(https?://|/).+"
_NAME: Final = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
SERVICE: Final = f"{_NAME}/{_NAME}"
#: Prefixes of variables that set an option (``GPUSHARE_INSPECT_…``, ``GPUSHARE_CONFIG``), or of misspellings of them.
_VARIABLES: Final = ("GPUSHARE_I", "GPUSHARE_C")
_OWN_SWITCHES: Final = frozenset(
    (*_SWITCHES.values(), "--all", "--fragmentation", "--recommend", "--pending", "--pods", "--top")
)
_ADVICE: Final = ("--headroom", "--min-history", "--prometheus", "--window")
_OWN_VALUED: Final = frozenset(
    {"--output", "--namespace", "--interval", "--why", "--scheduler", "--config", *_ADVICE}
)
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
#: Flags without a value, as typed.
SWITCHES: Final = frozenset((*_SWITCHES, *_OWN_SWITCHES, *_KUBECTL_SWITCHES))
#: Flags that take a value; and all flags that are not kubectl's.
VALUED: Final = _OWN_VALUED | _KUBECTL_VALUED
OWN: Final = _OWN_SWITCHES | _OWN_VALUED
_POD_NAME: Final = re.compile(_NAME, re.ASCII)
_TRUE: Final = {"true": True, "1": True, "t": True, "false": False, "0": False, "f": False}


_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class Options(NamedTuple):
    """The parsed command line. ``kubectl_flags`` are passed to kubectl unchanged."""

    node: str | None = None
    details: bool = False
    all_nodes: bool = False
    """Nodes that other device plugins serve, too."""
    output: str = ""
    watch: bool = False
    interval_s: float = INTERVAL_S
    namespace: str | None = None
    help: bool = False
    fragmentation: bool = False
    advise: bool = False
    advice: tuple[tuple[str, str], ...] = ()
    """Flags of ``--recommend`` with their values, as typed."""
    view: str = ""
    """``why``, ``pending``, ``pods`` or ``top``; empty for nodes."""
    pod: str = ""
    """``namespace/name`` of the pod of ``--why``."""
    scheduler: str = SCHEDULER
    kubectl_flags: tuple[str, ...] = ()


def parse(arguments: Sequence[str], environ: Mapping[str, str] = _NOTHING) -> Options:
    """Parse a command line (without the program's name), with settings from ``environ`` and a file; raises ``UsageError``."""
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
        raise UsageError("", f"at most one node can be named, not {len(nodes)}: {' '.join(nodes)}")
    if nodes and not nodes[0]:
        raise UsageError("", "the name of the node is empty")
    output = values.get("--output", "")
    if output and output not in FORMATS:
        raise UsageError("", f"unknown output format {output!r}; use one of {', '.join(FORMATS)}")
    fragmentation = switches.get("--fragmentation", False)
    if fragmentation and (nodes or output == "wide" or switches.get("--details")):
        raise UsageError(
            "", "--fragmentation covers the whole cluster and cannot be combined with NODE, -d or -o wide"
        )
    advise = switches.get("--recommend", False)
    if advise and (nodes or fragmentation or switches.get("--details") or output == "wide"):
        raise UsageError(
            "",
            "--recommend covers all workloads and cannot be combined with NODE, -d, --fragmentation or -o wide",
        )
    advice_flags = [name for name in _ADVICE if name in values]
    if advice_flags and not advise:
        raise UsageError("", f"{advice_flags[0]} can only be used with --recommend")
    help_requested = switches.get("--help", False)
    if not help_requested:
        values = {**_configured_values(values.get("--config"), environ), **values}
    namespace = None if switches.get("--all-namespaces") else values.get("--namespace") or None
    view, pod = _view(switches, values, nodes, output)
    return Options(
        node=nodes[0] if nodes else None,
        details=switches.get("--details", False),
        all_nodes=_all_nodes(switches, values, nodes),
        output=output,
        watch=switches.get("--watch", False),
        interval_s=_interval_s(values["--interval"]) if "--interval" in values else INTERVAL_S,
        namespace=namespace,
        help=help_requested,
        fragmentation=fragmentation,
        advise=advise,
        advice=tuple((name, values[name]) for name in _ADVICE if name in values) if advise else (),
        view=view,
        pod=pod,
        scheduler=_scheduler(values.get("--scheduler", SCHEDULER)),
        kubectl_flags=tuple(kubectl_flags),
    )


def _all_nodes(switches: dict[str, bool], values: dict[str, str], nodes: list[str]) -> bool:
    if not switches.get("--all"):
        return False
    other = nodes or [view for view in VIEWS if switches.get(view) or view in values]
    if other:
        raise UsageError("", f"--all applies to the table of nodes and cannot be combined with {other[0]}")
    return True


def _configured_values(config: "str | None", environ: Mapping[str, str]) -> "dict[str, str]":
    """Values of flags from environment and configuration file."""
    if config is None and not any(name.startswith(_VARIABLES) for name in environ):
        return {}
    from gpushare.inspect.options import (
        configured_values,
    )  # importing it takes longer than parsing a command line

    return configured_values(config, environ)


def _view(
    switches: dict[str, bool], values: dict[str, str], nodes: list[str], output: str
) -> tuple[str, str]:
    """The requested view, and the pod of ``--why``; raises ``UsageError``."""
    requested = [view for view in VIEWS if switches.get(view) or view in values]
    if len(requested) > 1:
        raise UsageError("", f"{requested[0]} and {requested[1]} cannot be combined; choose one")
    if not requested or requested[0] in ("--fragmentation", "--recommend"):
        return "", ""
    view = requested[0]
    if nodes:
        raise UsageError("", f"{view} shows pods and cannot be combined with NODE ({nodes[0]})")
    if output == "wide" or (switches.get("--details") and view != "--why"):
        raise UsageError(
            "",
            f"{view} has no wide form and cannot be combined with {'-o wide' if output == 'wide' else '-d'}",
        )
    if view == "--top" and switches.get("--watch") and not output:
        raise UsageError("", "--top is already live; use -w only with -o json or -o yaml")
    if view != "--why":
        return view.removeprefix("--"), ""
    # kubectl accepts pod/NAME, too.
    namespace, slash, name = re.sub(r"\Apods?/", "", values["--why"]).rpartition("/")
    namespace = namespace if slash else values.get("--namespace") or "default"
    for part in (namespace, name):
        if not _POD_NAME.fullmatch(part):
            raise UsageError("", f"--why {values['--why']}: write the name of a pod, or NAMESPACE/NAME")
    return "why", f"{namespace}/{name}"


def _scheduler(text: str) -> str:
    if not re.fullmatch(SERVICE, text, re.ASCII):
        raise UsageError("", f"--scheduler {text}: write NAMESPACE/NAME of a Service")
    return text


def _words(arguments: Sequence[str]) -> Iterator[tuple[str | None, str]]:
    """(long name, value) of every flag, (``None``, word) of every other word.

    No pod's name begins with a dash, so ``--why -d POD`` is not ambiguous.
    """
    words = iter(arguments)
    open_flag: str | None = None
    flags_end = False
    for word in words:
        if flags_end or word == "-" or not word.startswith("-"):
            yield open_flag, word
            open_flag = None
        elif word == "--":
            flags_end = True
        elif word == "--why":
            open_flag = word
        elif word.startswith("--"):
            yield _long(word, words)
        else:
            yield from _short(word, words)
    if open_flag:
        raise UsageError("", f"flag {open_flag} needs a value")


def _long(word: str, words: Iterator[str]) -> tuple[str, str]:
    name, has_value, value = word.partition("=")
    if name in _OWN_SWITCHES or name in _KUBECTL_SWITCHES:
        return name, value if has_value else "true"
    if name in _OWN_VALUED or name in _KUBECTL_VALUED:
        return name, value if has_value else _next(name, words)
    raise UsageError("", f"unknown flag {name}{_did_you_mean(name)}")


def _did_you_mean(name: str) -> str:
    """`` (did you mean --pending?)``, or an empty text where no flag is similar."""
    import difflib  # slow to import, and needed for a misspelt flag only

    similar = difflib.get_close_matches(
        name, (*_OWN_SWITCHES, *_OWN_VALUED, *_KUBECTL_SWITCHES, *_KUBECTL_VALUED), 1, 0.75
    )
    return f" (did you mean {similar[0]}?)" if similar else ""


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
        if SHORTEST_INTERVAL_S <= interval_s <= LONGEST_INTERVAL_S:
            return interval_s
    raise UsageError(
        "",
        f"--interval={text} is not a number of seconds from {SHORTEST_INTERVAL_S} to {LONGEST_INTERVAL_S:.0f}",
    )
