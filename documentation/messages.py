"""What the product's Python says to people, gathered from the places where it is written.

A text is a template: ``…`` stands for what is filled in. What counts as one: a string of three words or more in a room of the
product that is no docstring, goes to no log, and explains no option of a command line. ``INTERNAL`` names modules whose texts no user
meets, each with the reason. What logs, charts, C libraries and the dashboard's scripts say is gathered by the modules named after them.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

ANY: Final = "…"
WORD: Final = re.compile(r"[A-Za-z]{2,}")
LEAST_WORDS: Final = 3

#: Rooms and modules of ``src/gpushare`` whose texts are looked at. The playground's API server, controllers, kubelets and
#: kube-scheduler say what Kubernetes says, and its walk prints what it shows.
ROOMS: Final = (
    "model", "moves.py", "ledger", "policy", "kube", "serving", "settings", "scheduler", "nodeagent", "admission",
    "uninstall", "nodetemplate", "inspect", "config", "dashboard", "simulate", "doctor", "__main__.py",
    "playground/__main__.py", "playground/cluster", "playground/controlplane", "playground/gpus",
)  # fmt: skip
#: Module (a pattern), or a name in one → why its texts need no entry.
INTERNAL: Final = {
    "*/options.py": "declarations of options: --help and the page about configuration show them",
    "config/__main__.py:_EPILOG": "part of --help",
    "__main__.py:GROUPS": "part of --help",
    "__main__.py:_TOOLS": "part of --help",
    "__main__.py:_EXAMPLES": "part of --help",
    "__main__.py:lines": "part of --help",
    "doctor/checks_admission.py:remedy": "what to do about a finding",
    "doctor/checks_parts.py:RIGHTS": "rights, within other messages",
    "doctor/checks_parts.py:remedy": "what to do about a finding",
    "doctor/cluster_checks.py": "what is well: the guide has it",
    "doctor/findings.py": "the forms that findings fill",
    "dashboard/access.py": "cookies, and the one option of the token",
    "settings/kinds.py": "words for what an option may be, within other messages",
    "settings/reading.py": "part of --help",
    "settings/schema.py": "words of the schema",
    "settings/shared.py": "declarations of options",
    "simulate/plot.py": "markup",
    "simulate/drawing.py:_LETTER": "markup",
    "ledger/placement.py:POLICIES": "how GPUs are chosen, in the record of a decision that --why shows in full",
    "scheduler/categories.py": "patterns by which reasons are sorted",
    "scheduler/cycle_log.py": "lines of the log",
    "scheduler/gpu_table.py": "the form of metrics",
    "scheduler/own_rules.py:_HELP": "patterns of kube-scheduler's words, and what would help, which needs no help itself",
    "scheduler/preempted.py": "the record of a preemption, which is shown in full by --why",
    "scheduler/telling.py": "the record of a decision, which is shown in full by --why",
    "inspect/completion.py": "scripts for shells, and their short words for flags",
    "inspect/preempting.py": "what --why shows of the record of a preemption",
    "inspect/arguments.py:HELP": "the help itself",
    "inspect/fragments.py:_HEAD": "a table's head",
    "kube/posting.py": "words of the HTTP client's own errors; session.py says them in ours",
    "nodeagent/isolation/children.py:_START": "a program",
    "nodeagent/isolation/daemons.py:_START": "a program",
    "nodeagent/isolation/files.py": "the format of a file",
    "nodeagent/isolation/trial_program.py": "a program's answers to the agent",
    "nodeagent/probes.py": "words of HTTP",
    "nodeagent/succession.py": "the protocol between two agents",
    "nodeagent/settings.py:PROGRAM": "the program's name",
    "playground/cluster/parts.py:_TETHER": "a program",
    "playground/gpus/keys.py:KEYS": "words for what a key may be, within other messages",
    "playground/gpus/presets.py:_MODELS": "names of GPUs",
    "playground/gpus/writing.py": "the format of a file",
    "scheduler/wire.py": "the protocol with kube-scheduler",
    "serving/exchange.py": "answers to HTTP that is broken",
    "simulate/curves.py": "words in a picture",
    "simulate/jumping.py": "of a fault of ours alone",
    "simulate/report.py": "tables",
    "simulate/wording.py": "amounts in tables",
}
#: What makes a finding of the doctor, in ``of(subject, says, remedy)``: what to do stands beside it wherever it is shown.
_FINDINGS: Final = frozenset({"fault", "warning", "unknown"})
#: What the doctor says where all is well.
_WELL: Final = frozenset({"fine", "Check"})
#: How the loggers of modules are called.
LOGGERS: Final = frozenset({"logger", "_log", "_LOG"})
#: Calls that take texts for no user.
_OPTIONS: Final = frozenset(
    {
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
    """A template, and where it is written (``FILE:LINE``)."""

    where: str
    template: str


def from_code(package: Path) -> list[Message]:
    """Of all rooms of the package ``gpushare`` at ``package``."""
    found: list[Message] = []
    for room in ROOMS:
        top = package / room
        for path in sorted(top.rglob("*.py")) if top.is_dir() else [top]:
            name = str(path.relative_to(package))
            if not any(fnmatch(name, left_out) for left_out in INTERNAL):
                found += of_module(name, path.read_text())
    return found


def reasons(package: Path) -> dict[str, str]:
    """Every reason of an event (``GPUUnhealthy``) → where it is named: constants ``REASON_…``, first words of a ``Trouble``."""
    found: dict[str, str] = {}
    for room in ROOMS:
        top = package / room
        for path in sorted(top.rglob("*.py")) if top.is_dir() else [top]:
            name = path.relative_to(package)
            for node in ast.walk(ast.parse(path.read_text())):
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
    collector = _Collector(name)
    collector.visit(ast.parse(source))
    return collector.found


class _Collector(ast.NodeVisitor):
    def __init__(self, name: str) -> None:
        self._name = name
        self.found: list[Message] = []

    def visit_Expr(self, node: ast.Expr) -> None:
        """A string that stands alone is a docstring."""
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Types that are written as texts are no texts for people, nor is what stands for a value while debugging."""
        if node.name == "__repr__":
            return
        for one in (*node.args.defaults, *filter(None, node.args.kw_defaults), *node.body):
            self.visit(one)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        """As for any other function."""
        for one in (*node.args.defaults, *filter(None, node.args.kw_defaults), *node.body):
            self.visit(one)

    def visit_For(self, node: ast.For) -> None:
        """A loop over tuples that makes options holds their helps."""
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
        """What an assertion says is for us."""

    def visit_Raise(self, node: ast.Raise) -> None:
        """So is what an ``AssertionError`` says."""
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
        if not any(f"{self._name}:{name}" in INTERNAL for name in names) and node.value is not None:
            self.visit(node.value)

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
        """Helps of metrics end with a full stop; messages do not, but for tables' last lines."""
        if text.endswith(".") and not self._name.startswith("inspect/"):
            return False
        return len(WORD.findall(text)) >= LEAST_WORDS and " " in text and not text.startswith(("http", "/"))
