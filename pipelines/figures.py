"""Figures written by benchmarks, and their budgets."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

#: File of figures below ``build/figures`` → file of budgets. Isolation's rows contain their own promises.
_BUDGETS: Final = {
    "bench.json": "benchmarks/budgets.json",
    "cluster.json": "benchmarks/cluster/budgets.json",
    "dra.json": "benchmarks/dra/budgets.json",
    "load.json": "benchmarks/load/budgets.json",
    "placement.json": "benchmarks/placement/budgets.json",
}
_ISOLATION: Final = "isolation.json"


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure that has a budget."""

    name: str
    value: float | None
    """``None`` where it was not measured."""
    unit: str
    budget: str
    kept: bool


def against_budgets(root: Path, since_s: float) -> list[Figure]:
    """Every figure with a budget, of files that were written since then."""
    found = []
    for file, budgets in _BUDGETS.items():
        measured = _values(_read(root / "build" / "figures" / file, since_s))
        # A run without this benchmark has no figures of it.
        if measured:
            for name, budget in json.loads((root / budgets).read_text()).items():
                found.append(_figure(name, {**budget, **measured.get(name, {})}))
    return found


def missed_promises(root: Path, since_s: float) -> tuple[int, list[str]]:
    """How many rows isolation's measurements have, and those that missed what was promised, or in which a peer is ahead."""
    parts = _read(root / "build" / "figures" / _ISOLATION, since_s).get("parts", {})
    rows = [(part, row) for part, found in parts.items() for row in found["rows"]]
    missed = [f"{part}, {row['name']}: missed" for part, row in rows if row["good"] is False]
    behind = [f"{part}, {row['name']}: a peer is ahead" for part, row in rows if row["standing"] == "behind"]
    return len(rows), missed + behind


def _figure(name: str, measured: dict[str, Any]) -> Figure:
    """``measured``: its budget, and its value if it was measured."""
    words = {"most": "at most", "least": "at least"}
    said = ", ".join(f"{words[bound]} {measured[bound]}" for bound in words if bound in measured)
    value = measured.get("value")
    kept = value is not None and measured.get("least", value) <= value <= measured.get("most", value)
    return Figure(name, value, measured.get("unit", ""), said, kept)


def _read(path: Path, since_s: float) -> dict[str, Any]:
    if not path.exists() or path.stat().st_mtime < since_s:
        return {}
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _values(written: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """``{name: {"value": …}}`` of each of the forms in which benchmarks write; with the bounds for the machine, where these depend on it."""
    figures = written.get("figures", written)
    return {name: one if isinstance(one, dict) else {"value": one} for name, one in figures.items()}
