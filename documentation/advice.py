"""Commands in texts of the product, collected from its Python sources.

They are between backticks: a command (``PROGRAMS``), a value of a chart, an option of the doctor. Texts are collected as in ``messages``, with
``…`` for what is filled in, except our own names, which are resolved.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

from documentation.chart_values import CHARTS
from documentation.sources import modules
from documentation.understood import charts, fault
from gpushare.__main__ import ROLES
from gpushare.api import names
from gpushare.api.node.modes import NodeMode
from gpushare.doctor.options import ROLE

#: Programs that a text may name, on the reader's machine or on a node.
PROGRAMS: Final = (
    "kubectl", "helm", "systemctl", "journalctl", "dmesg", "lspci", "grep", "nvidia-smi", "nvidia-ctk", "nvidia-modprobe",
)  # fmt: skip
#: Modules that are skipped: they have no advice, or are help texts with tests of their own.
LEFT_OUT: Final = (
    "playground/*", "*/options.py", "inspect/arguments.py", "inspect/completion.py", "__main__.py", "config/__main__.py",
)  # fmt: skip
#: Where each named program must be marked, even without arguments.
STRICT: Final = "doctor/*"
_ANY: Final = "…"
_MARKED: Final = re.compile(r"`([^`]+)`")
_NAMED: Final = re.compile(rf"(?<![\w/.-])(?:{'|'.join(PROGRAMS)})(?![\w-])")
#: A program with a subcommand. Bare names of programs occur in other sentences, too.
_STARTED: Final = re.compile(
    r"(?<![\w/.-])(?:kubectl(?: -n \S+)? (?:get|describe|logs|label|annotate|explain|inspect|uncordon|drain|delete|rollout|exec|apply|edit)"
    r"|helm (?:install|upgrade|uninstall|rollback)|systemctl [a-z]+|journalctl -|dmesg \||nvidia-smi -|nvidia-ctk [a-z]+"
    rf"|gpushare (?:{'|'.join(ROLES)}) --?[a-z])"
)
#: Variable → its placeholder in a command.
_STANDING: Final = {"chart": "CHART", "setting": "KEY=VALUE"}
_VALUE: Final = re.compile(r"[a-z]\w*(?:\.\w+)+")
_OPTION: Final = re.compile(r"--[a-z][a-z-]+")


@dataclass(frozen=True, slots=True, order=True)
class Text:
    """A text, and where it is written (``FILE:LINE``)."""

    where: str
    text: str

    @property
    def marked(self) -> list[str]:
        """The parts between backticks."""
        return _MARKED.findall(self.text)

    @property
    def commands(self) -> list[str]:
        """Those that begin with a program."""
        return [one for one in self.marked if one.split()[0] in (*PROGRAMS, "gpushare")]


def from_code(src: Path) -> list[Text]:
    """Every text of our packages below ``src`` that is no docstring and no help of an option."""
    found: list[Text] = []
    for name, path in modules(src):
        if not any(fnmatch(name, pattern) for pattern in LEFT_OUT):
            found += of_module(name, path.read_text())
    return found


def of_module(name: str, source: str) -> list[Text]:
    """The texts of one module."""
    tree = ast.parse(source)
    constants = dict(_constants(tree))
    nodes = list(ast.walk(tree))
    skipped = {id(one) for one in _docstrings(nodes)}
    found = []
    texts = [one for one in nodes if isinstance(one, ast.JoinedStr | ast.Constant)]
    # An outer text precedes its parts.
    for node in sorted(texts, key=lambda one: (one.lineno, one.col_offset)):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
            text = "".join(_part(part, constants) for part in node.values)
            found.append(Text(f"{name}:{node.lineno}", text))
        elif isinstance(node.value, str):
            found.append(Text(f"{name}:{node.lineno}", node.value))
    return found


def faults(one: Text, project: Path) -> Iterator[str]:
    """What is wrong with the commands in a text."""
    if unmarked := unmarked_in(one):
        yield f"`{unmarked}` is no code; put commands between backticks"
    for text in one.marked:
        if said := wrong(text, project):
            yield f"`{text}`: {said}"


def unmarked_in(one: Text) -> str:
    """A program outside of backticks that the reader should start, or an empty text."""
    pattern = _NAMED if fnmatch(one.where.partition(":")[0], STRICT) else _STARTED
    found = pattern.search(_MARKED.sub("", one.text))
    return "" if found is None else found[0]


def wrong(marked: str, project: Path) -> str:
    """What is wrong with a part between backticks; empty if it is understood, or no command."""
    if marked.split()[0] in (*PROGRAMS, "gpushare"):
        return fault(marked, project) or _incomplete(marked)
    first = marked.partition(".")[0]
    of_charts = [chart for chart in CHARTS if charts.has_value(chart, first, project)]
    if _VALUE.fullmatch(marked) and of_charts:
        return (
            ""
            if any(charts.has_value(one, marked, project) for one in of_charts)
            else "no chart has such a value"
        )
    if _OPTION.fullmatch(marked) and marked[2:] not in {one.name for one in ROLE.options}:
        return "the doctor has no such option"
    return ""


def _incomplete(command: str) -> str:
    """What is missing from a command that would be accepted and do something else."""
    words = command.split()
    if words[:2] != ["helm", "upgrade"] or len(words) <= 3:
        return ""
    if "-n" not in words:
        return "without -n it is about the namespace of the kubeconfig's context"
    if "--set" in words and "--reuse-values" not in words:
        return "without --reuse-values every other value goes back to its default"
    return ""


def _part(part: ast.expr, constants: dict[str, str]) -> str:
    if isinstance(part, ast.Constant):
        return str(part.value)
    value = part.value if isinstance(part, ast.FormattedValue) else part
    if isinstance(value, ast.Name):
        return constants.get(value.id) or _STANDING.get(value.id, _ANY)
    known = _resolved(value)
    return known if isinstance(known, str) else _ANY


def _resolved(value: ast.expr) -> Any:
    """What ``names.X`` and ``NodeMode.X.value`` are."""
    match value:
        case ast.Attribute(value=ast.Name(id="names"), attr=attr):
            return getattr(names, attr, None)
        case ast.Attribute(value=ast.Attribute(value=ast.Name(id="NodeMode"), attr=attr), attr="value"):
            return getattr(NodeMode, attr).value
    return None


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The module's string constants."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield from ((one.id, value.value) for one in targets if isinstance(one, ast.Name))


def _docstrings(nodes: Iterable[ast.AST]) -> Iterator[ast.Constant]:
    """Strings that are statements."""
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value
