"""The page on a nightly run: machine, commit, each step with its seconds and result, figures against budgets."""

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from pipelines import figures
from pipelines.step import Result


def page(root: Path, results: Sequence[Result], since_s: float, total_s: float) -> str:
    """The page as Markdown; figures count that were written since ``since_s``, in seconds of the epoch."""
    began = datetime.fromtimestamp(since_s, UTC)
    good = sum(one.good for one in results)
    lines = [
        "# Nightly run",
        "",
        f"{began:%Y-%m-%d %H:%M} UTC, commit {_commit(root)}: {good} of {len(results)} steps are good, "
        f"after {total_s / 60:.0f} minutes.",
        "",
        _machine(),
        "",
        "## Steps",
        "",
        *_table(("step", "seconds", "seconds of processors", "result"), [_row(one) for one in results]),
    ]
    if found := figures.against_budgets(root, since_s):
        rows = [(one.name, _value(one), one.budget, "kept" if one.kept else "**no**") for one in found]
        lines += ["", "## Figures against budgets", "", *_table(("figure", "value", "budget", "kept"), rows)]
    rows_of_isolation, missed = figures.missed_promises(root, since_s)
    if rows_of_isolation:
        lines += ["", "## Isolation", "", f"{rows_of_isolation} rows, {len(missed)} not as promised."]
        lines += ["", *(f"* {_cell(one)}" for one in missed)] if missed else []
    return "\n".join(lines) + "\n"


def _row(one: Result) -> tuple[str, ...]:
    state = one.state if one.good else f"**{one.state}**"
    result = f"{state}: {one.reason}" if one.reason else str(state)
    return one.step.name, f"{one.wall_s:.0f}", f"{one.processor_s:.0f}", result


def _value(one: figures.Figure) -> str:
    return "not measured" if one.value is None else f"{one.value:.3f} {one.unit}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(map(_cell, line))} |" for line in lines]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _commit(root: Path) -> str:
    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    changed = " with changes" if git("status", "--porcelain") else ""
    return (git("rev-parse", "--short", "HEAD") or "unknown") + changed


def _machine() -> str:
    info = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in info if "model name" in line), platform.machine())
    memory_kib = int(Path("/proc/meminfo").read_text().split()[1])
    return (
        f"{model}, {os.cpu_count()} CPUs, {memory_kib / 2**20:.0f} GiB, Linux {os.uname().release}, "
        f"Python {platform.python_version()}."
    )
