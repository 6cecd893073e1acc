"""Messages of the product, collected from its Python sources.

A message is a string of three words or more that is no docstring, log line or help of an option, however it is used; ``…`` replaces what
is filled in. ``INTERNAL`` lists exceptions with their reason. Other modules here collect from logs, charts, C sources and scripts.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

from documentation.sources import modules

ANY: Final = "…"
WORD: Final = re.compile(r"[A-Za-z]{2,}")
LEAST_WORDS: Final = 3
_COMMAND: Final = re.compile(r"`[^`]+`")
_NO_WORDS: Final = ("http:", "https:", "/", "text/", "application/", "no-cache")

#: Module, or a constant or function in one (both are patterns) → why its texts need no entry.
INTERNAL: Final = {
    # Part of --help, which shows them.
    "*/options.py:_*": "part of --help: examples, rights, headings",
    "config/__main__.py:_EPILOG": "part of --help",
    "__main__.py:GROUPS": "part of --help",
    "__main__.py:_TOOLS": "part of --help",
    "__main__.py:_EXAMPLES": "part of --help",
    "__main__.py:lines": "part of --help",
    "inspect/arguments.py:HELP": "the help itself",
    "inspect/completion.py:FLAGS": "short words for flags, which a shell shows as they are typed",
    "inspect/completion.py:_candidates": "short words for what is typed next",
    # What to do about a finding is shown next to it.
    "doctor/cluster/checks/admission.py:suggestion": "what to do about a finding",
    "doctor/cluster/checks/rbac.py:suggestion": "what to do about a finding",
    "doctor/cluster/checks/nodes.py:wait": "what to do about a finding",
    "doctor/cluster/checks/nodes.py:_suggestion": "what to do about a finding",
    "doctor/cluster/checks/nodes.py:_reset": "what to do about a finding",
    "doctor/cluster/checks/components.py:todo": "what to do about a finding",
    "doctor/cluster/checks/components.py:suggestion": "what to do about a finding",
    "doctor/suggested_commands.py:pull": "what to do about a finding",
    "reasons/suggestions/*": "a suggestion for a pending pod",
    "*/suggestions.py": "a suggestion for a pending pod",
    "*/label_suggestions.py": "a suggestion for a pending pod",
    "*/gang_suggestions.py": "a suggestion for a pending pod",
    # Words within messages that have entries.
    "doctor/cluster/checks/rbac.py:RIGHTS": "rights, within other messages",
    "doctor/cluster/registry.py:_RIGHTS": "rights, within other messages",
    "api/request/describe.py:short_text": "amounts, within tables and other messages",
    "kube/client/posting.py": "words of the HTTP client's own errors; session.py says them in ours",
    # The playground's imitation of Kubernetes answers in Kubernetes' words, and its tour states its expectations.
    "playground/apiserver/*": "Kubernetes' own words",
    "playground/controllers/*": "Kubernetes' own words",
    "playground/kubelet/*": "Kubernetes' own words",
    "playground/kubescheduler/*": "Kubernetes' own words",
    "playground/walk/*": "what the tour expects, next to the output",
    "playground/images/programs/*": "output of the sample programs",
    # Lines of reports, which their guides explain.
    "inspect/views/explain.py:_of_*": "lines of a report",
    "inspect/views/fragmentation.py:fragments": "lines of a report",
    "inspect/views/nodes.py": "lines of a report",
    "inspect/views/recommend.py:_table": "lines of a report",
    "inspect/views/recommend.py:_history": "lines of a report",
    "inspect/sources/gang_reservations.py:_line": "lines of a report",
    "inspect/sources/gang_reservations.py:_share": "lines of a report",
    "dashboard/data/fragmentation.py": "lines of a report",
    "simulate/output/report.py": "lines of a report",
    "simulate/output/comparison.py": "lines of a report",
    # Heads of tables, pictures, metrics: no sentences.
    "doctor/findings.py:catalogue": "a table's head",
    "inspect/views/fragmentation.py:_HEAD": "a table's head",
    "options/schema.py": "words of the schema, and a table's head",
    "scheduler/observability/gpu_metrics.py": "the form of metrics",
    "process/log_setup.py": "the form of a line",
    # Patterns, names, programs, formats, protocols.
    "reasons/categories.py:_BEGINNINGS": "patterns by which reasons are sorted",
    "reasons/kube_scheduler.py:_HELP": "patterns of kube-scheduler's words, and suggestions, which need no explanation",
    "nodeagent/settings.py:PROGRAM": "the program's name",
    "playground/gpus/presets.py:_MODELS": "names of GPUs",
    "inspect/completion.py:_BASH": "a program",
    "inspect/completion.py:_ZSH": "a program",
    "inspect/completion.py:_FISH": "a program",
    "inspect/completion.py:_KUBECTL": "a program",
    "nodeagent/isolation/backends/subprocesses.py:_START": "a program",
    "nodeagent/isolation/backends/daemons.py:_START": "a program",
    "playground/cluster/parts.py:_TETHER": "a program",
    "playground/images/registry.py:write_program": "a program",
    "admission/claims/selectors.py": "CEL",
    "nodeagent/isolation/storage/files.py": "the format of a file",
    "playground/gpus/writing.py": "the format of a file",
    "httpserver/small_http.py:_PHRASES": "words of HTTP",
    "httpserver/relay.py:asking": "the form of HTTP",
    "dashboard/server/auth.py:cookie": "a cookie",
    "dashboard/server/auth.py:no_cookie": "a cookie",
    "kubeletapi/*_pb2_grpc.py": "made by protoc",
    # Not shown to users.
    "scheduler/observability/cycle_log.py": "lines of the log below the level warning",
    "simulate/engine/virtual_clock.py": "of our own faults only",
}
#: Calls that make a finding of the doctor, as ``of(subject, says, suggestion)``; the suggestion is shown next to it.
_FINDINGS: Final = frozenset({"fault", "warning", "unknown"})
#: The doctor's words for success.
_WELL: Final = frozenset({"fine", "Check"})
#: Modules in which a text with a full stop is the help of a metric.
_HELPS_OF_METRICS: Final = (
    "*/metrics.py", "*/gpu_metrics.py", "*/dcgm_exporter.py", "*/main.py", "*/options.py",
    "scheduler/plugins/autoscaling/plugin.py", "scheduler/observability/gpu_metrics.py", "scheduler/observability/cluster_metrics.py",
    "scheduler/plugins/explain/pending_pod_events.py",
)  # fmt: skip
#: How the loggers of modules are called.
LOGGERS: Final = frozenset({"logger", "_log", "_LOG"})
#: Calls that take texts for no user: declarations of options, patterns, types.
_OPTIONS: Final = frozenset(
    {
        "Option",
        "Role",
        "Kind",
        "_kind",
        "add_argument",
        "ArgumentParser",
        "_Parser",
        "add_argument_group",
        "add_parser",
        "compile",
        "cast",
        "TypeVar",
    }
)


@dataclass(frozen=True, slots=True, order=True)
class Message:
    """A template, and its location (``FILE:LINE``)."""

    where: str
    template: str


def from_code(src: Path) -> list[Message]:
    """Of all modules of our packages below ``src``."""
    found: list[Message] = []
    for name, path in modules(src):
        if not any(fnmatch(name, left_out) for left_out in INTERNAL):
            found += of_module(name, path.read_text())
    return found


def reasons(src: Path) -> dict[str, str]:
    """Every reason of an event (``GPUUnhealthy``) → where it is named: constants ``REASON_…``, first words of a ``Trouble``."""
    found: dict[str, str] = {}
    for name, path in modules(src):
        source = path.read_text()
        if "REASON_" not in source and "Trouble(" not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            found |= {reason: f"{name}:{getattr(node, 'lineno', 0)}" for reason in _reasons(node)}
    return found


def _reasons(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "").startswith("REASON_"):
        if isinstance(node.value, ast.Constant):
            yield str(node.value.value)
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
        if any(getattr(target, "id", "").startswith("REASON_") for target in node.targets):
            yield str(node.value.value)
    elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Trouble" and node.args:
        yield from (str(one.value) for one in ast.walk(node.args[0]) if isinstance(one, ast.Constant))


def of_module(name: str, source: str) -> list[Message]:
    """The messages of one module."""
    return of_tree(name, ast.parse(source))


def of_tree(name: str, tree: ast.Module) -> list[Message]:
    """The same, of a module that is parsed already."""
    collector = _Collector(name)
    collector.visit(tree)
    return collector.found


class _Collector(ast.NodeVisitor):
    def __init__(self, name: str) -> None:
        self._name = name
        self._left_out = [
            pattern
            for file, _, pattern in (one.partition(":") for one in INTERNAL)
            if pattern and fnmatch(name, file)
        ]
        self.found: list[Message] = []

    def visit_Expr(self, node: ast.Expr) -> None:
        """A string that is a statement is a docstring."""
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Types written as texts are not messages, nor are texts of ``__repr__``."""
        if node.name == "__repr__" or self._is_left_out(node.name):
            return
        for one in (*node.args.defaults, *filter(None, node.args.kw_defaults), *node.body):
            self.visit(one)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        """As for any other function."""
        for one in (*node.args.defaults, *filter(None, node.args.kw_defaults), *node.body):
            self.visit(one)

    def visit_For(self, node: ast.For) -> None:
        """A loop over tuples that creates options contains their helps."""
        if not any(
            isinstance(one, ast.Attribute) and one.attr == "add_argument"
            for inner in node.body
            for one in ast.walk(inner)
        ):
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Texts for logs and options are left out, and of the doctor's findings what to do."""
        if isinstance(node.func, ast.Attribute):
            is_log = getattr(node.func.value, "id", "") in LOGGERS
            called = node.func.attr
        else:
            is_log, called = False, getattr(node.func, "id", "")
            if called in _FINDINGS:
                for one in node.args[:2]:
                    self.visit(one)
                return
        if not is_log and called not in _OPTIONS | _WELL:
            self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> None:
        """Helps of options are left out, whatever takes them."""
        if node.arg not in {"help", "description", "epilog"}:
            self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> None:
        """Texts of assertions are for developers."""

    def visit_Raise(self, node: ast.Raise) -> None:
        """So are those of ``AssertionError``."""
        called = node.exc.func if isinstance(node.exc, ast.Call) else None
        if getattr(called, "id", "") != "AssertionError":
            self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        """Texts that are left out by name."""
        self._assigned(node, [getattr(target, "id", "") for target in node.targets])

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Texts that are left out by name."""
        self._assigned(node, [getattr(node.target, "id", "")])

    def _assigned(self, node: ast.Assign | ast.AnnAssign, names: list[str]) -> None:
        if not any(map(self._is_left_out, names)) and node.value is not None:
            self.visit(node.value)

    def _is_left_out(self, name: str) -> bool:
        return any(fnmatch(name, left_out) for left_out in self._left_out)

    def visit_Constant(self, node: ast.Constant) -> None:
        """A text without anything to fill in."""
        if isinstance(node.value, str):
            self._note(node, node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """A text with something to fill in, and texts within what is filled in."""
        parts = [str(part.value) if isinstance(part, ast.Constant) else ANY for part in node.values]
        self._note(node, "".join(parts))
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                self.visit(part.value)

    def _note(self, node: ast.expr, text: str) -> None:
        text = " ".join(text.split())
        if self._is_for_people(text):
            self.found.append(Message(f"{self._name}:{node.lineno}", text))

    def _is_for_people(self, text: str) -> bool:
        """Paths, addresses and HTTP's headers are not, nor are helps of metrics, nor commands alone: those are ``advice``'s."""
        if _COMMAND.fullmatch(text):
            return False
        if text.endswith(".") and any(fnmatch(self._name, pattern) for pattern in _HELPS_OF_METRICS):
            return False
        return len(WORD.findall(text)) >= LEAST_WORDS and " " in text and not text.startswith(_NO_WORDS)
