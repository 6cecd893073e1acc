"""Rows of figures: printed immediately, stored by part, shown as tables."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

#: The result of a measurement: its figures, or how the program ended instead.
Outcome = Sequence[float] | str
#: Ours compared with the peer's.
Standing = Literal["ahead", "level", "behind"]


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement; ``good`` is None without a guarantee, ``peer`` without a peer."""

    name: str
    wanted: Sequence[float]
    got: Outcome
    unit: str
    good: bool | None
    note: str
    peer: Outcome | None = None
    standing: Standing | None = None

    def line(self) -> str:
        """A readable line."""
        verdict = {True: "", False: "  MISSED", None: ""}[self.good]
        peer = "" if self.peer is None else f" | {shown(self.peer):>18} {self.standing or ''}"
        return (
            f"  {self.name:<66} {shown(self.wanted, 4):>12} {self.note:<14} {shown(self.got):>18} {self.unit}"
            f"{peer}{verdict}"
        )


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of one subject, and the machine."""

    machine: str
    peer: str | None
    rows: Sequence[Row]


def shown(outcome: Outcome, digits: int | None = None) -> str:
    """Figures as short text."""
    if isinstance(outcome, str):
        return outcome
    return " ".join(f"{value:.{digits}g}" if digits else f"{value:.1f}" for value in outcome)


def _rounded(outcome: Any) -> Any:
    return [round(value, 3) for value in outcome] if isinstance(outcome, (list, tuple)) else outcome


def store(path: Path, parts: Mapping[str, Part]) -> None:
    """Writes ``{"parts": {NAME: {"machine", "peer", "rows": [a Row's fields]}}}``; other parts in the file stay."""
    path.parent.mkdir(parents=True, exist_ok=True)
    existing = read(path) if path.exists() else {}
    merged = {name: asdict(part) for name, part in sorted({**existing, **parts}.items())}
    for part in merged.values():
        for row in part["rows"]:
            for field in ("wanted", "got", "peer"):
                row[field] = _rounded(row[field])
    path.write_text(json.dumps({"parts": merged}, indent=2) + "\n")


def read(path: Path) -> dict[str, Part]:
    """The results written by ``store``; empty for other files."""
    try:
        parts = json.loads(path.read_text())["parts"]
        return {
            name: Part(part["machine"], part["peer"], [Row(**row) for row in part["rows"]])
            for name, part in parts.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def markdown(parts: Mapping[str, Part]) -> str:
    """A table for each part."""
    lines = []
    for name, part in parts.items():
        lines += [f"## {name}", "", part.machine, ""]
        columns = ["", "promised", "gpushare", *([part.peer] if part.peer else [])]
        lines += [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
        for row in part.rows:
            promised = " ".join(filter(None, (shown(row.wanted, 4), row.note)))
            ours = f"{shown(row.got)} {row.unit}" + (" **missed**" if row.good is False else "")
            cells = [row.name, promised or "–", ours]
            if part.peer:
                peer = "–" if row.peer is None else shown(row.peer)
                cells.append(peer + (" (ours is behind)" if row.standing == "behind" else ""))
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)
