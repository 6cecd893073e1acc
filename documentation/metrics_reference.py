"""The reference of all metrics, read from the code that declares them: name, type, labels, description."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpushare.nodeagent.observability import dcgm_exporter, gpu_metrics
from gpushare.scheduler.observability.gpu_metrics import LABELS as GPU_LABELS

_HEAD: Final = """\
# Metrics

Every metric that gpushare exports: at `/metrics`, and those of the node agent under DCGM's and ACK's names at `/metrics/dcgm`. Names are
`gpushare_<component>_<quantity>_<base unit>`, or without a component where they are about a GPU, a container or a process. This page is generated
from the code by `make docs`. Scraping, alerts and the Grafana dashboard: [metrics](../guide/metrics.md).
"""
#: Title, description of the component, its module.
_PARTS: Final = (
    (
        "Node agent",
        "On each GPU node: of its GPUs, their containers and processes, and of the agent.",
        "nodeagent",
    ),
    ("Scheduler", "Of the extender. kube-scheduler next to it has its own on port 10259.", "scheduler"),
    ("Webhook", "In clusters that need it.", "admission"),
    ("Dashboard", "Where it is enabled.", "dashboard"),
)
_OTHERS: Final = (
    "Node agent, under DCGM's and ACK's names",
    "At `/metrics/dcgm`. Each has a counterpart at `/metrics` ([which](../guide/metrics.md)).",
)
_KINDS: Final = {
    "Counter": "counter",
    "Gauge": "gauge",
    "_counter": "counter",
    "_gauge": "gauge",
    "watch": "gauge",
    "watch_total": "counter",
    "gauge": "gauge",
    "gauge_by": "gauge",
    "watch_by": "gauge",
    "Column": "gauge",
    "Histogram": "histogram",
    "Durations": "histogram",
}


@dataclass(frozen=True, slots=True, order=True)
class Figure:
    """One family. ``name`` is as it is scraped."""

    name: str
    kind: str
    text: str
    labels: tuple[str, ...]


def page(package: Path) -> str:
    """The page's Markdown, from the package ``gpushare`` at ``package``."""
    parts = [_HEAD]
    for title, note, room in _PARTS:
        found = sorted(figures(package / room))
        if room == "nodeagent":
            found = _written(gpu_metrics.FAMILIES) + found
        parts.append(_part(title, note, found))
        if room == "nodeagent":
            parts.append(_part(*_OTHERS, _written(dcgm_exporter.FAMILIES)))
    return "\n".join(parts)


def _written(families: Mapping[str, tuple[str, str, tuple[str, ...]]]) -> list[Figure]:
    return [Figure(name, kind, text, labels) for name, (kind, text, labels) in families.items()]


def _part(title: str, note: str, found: list[Figure]) -> str:
    return f"## {title}\n\n{note}\n\n| metric | type | labels | |\n|---|---|---|---|\n{_rows(found)}"


def figures(room: Path) -> Iterator[Figure]:
    """Metrics created by calls in the modules of a component."""
    for path in sorted(room.rglob("*.py")):
        tree = ast.parse(path.read_text())
        named = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (found := _figure(node, named)) is not None:
                yield found


def _figure(call: ast.Call, named: dict[str, ast.expr]) -> Figure | None:
    made_by = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    texts = [_text(one) for one in call.args]
    kind, rest = _KINDS.get(made_by, ""), call.args[2:]
    if not kind or len(texts) < 2 or not texts[0].startswith("gpushare_"):
        return None
    labels = GPU_LABELS if made_by == "Column" else _labels(rest, named)
    total = "_total" if made_by in ("Counter", "watch_total") else ""
    return Figure(texts[0] + total, kind, texts[1], labels)


def _labels(rest: list[ast.expr], named: dict[str, ast.expr]) -> tuple[str, ...]:
    found: list[str] = []
    for one in rest:
        match one:
            case ast.Constant(value=str(text)):
                found.append(text)
            case ast.List(elts=several) | ast.Tuple(elts=several):
                found += _labels(several, named)
            case ast.Starred(value=ast.Name(id=name)) if name in named:
                found += _labels([named[name]], named)
    return tuple(found)


def _text(node: ast.expr) -> str:
    """A string's value; ``KIND`` for what is filled in, by its name in the code."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text(one) for one in parts)
        case ast.FormattedValue(value=ast.Name(id=name)):
            return name.upper()
        case _:
            return ""


def _rows(found: list[Figure]) -> str:
    return "".join(
        f"| `{one.name}` | {one.kind} | {', '.join(f'`{label}`' for label in one.labels)} | {one.text} |\n"
        for one in found
    )
