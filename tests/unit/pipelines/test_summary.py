"""The page on a nightly run has its steps and its figures against their budgets."""

import json
from pathlib import Path

import pytest

from documentation.inline import inline_commands
from pipelines import figures
from pipelines.step import Result, State, Step
from pipelines.summary import page

LONG_AGO = 0.0


def write(root: Path, name: str, content: object) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, "benchmarks/budgets.json", {"a_ms": {"most": 5.0, "unit": "ms"}, "b": {"least": 2}})
    write(tmp_path, "benchmarks/cluster/budgets.json", {"ratio": {"least": 0.6, "unit": "ratio"}})
    write(tmp_path, "benchmarks/placement/budgets.json", {"default.fragmentation": {"least": 95.4}})
    return tmp_path


def test_figures_of_every_form_are_compared_with_their_budgets(root: Path) -> None:
    write(root, "build/figures/bench.json", {"a_ms": {"value": 5.5, "unit": "ms"}})
    write(root, "build/figures/cluster.json", {"figures": {"ratio": {"value": 0.6, "unit": "ratio"}}})
    write(root, "build/figures/placement.json", {"default.fragmentation": 95.5})
    assert figures.against_budgets(root, LONG_AGO) == [
        figures.Figure("a_ms", 5.5, "ms", "at most 5.0", kept=False),
        figures.Figure("b", None, "", "at least 2", kept=False),
        figures.Figure("ratio", 0.6, "ratio", "at least 0.6", kept=True),
        figures.Figure("default.fragmentation", 95.5, "", "at least 95.4", kept=True),
    ]


def test_figures_of_an_earlier_run_do_not_count(root: Path) -> None:
    write(root, "build/figures/bench.json", {"a_ms": {"value": 1, "unit": "ms"}})
    after = (root / "build/figures/bench.json").stat().st_mtime + 1
    assert figures.against_budgets(root, after) == []


def test_rows_of_isolation_that_missed_their_promise_are_named(root: Path) -> None:
    rows = [
        {"name": "x", "good": True, "standing": None},
        {"name": "y", "good": False, "standing": None},
        {"name": "z", "good": None, "standing": "behind"},
    ]
    write(root, "build/figures/isolation.json", {"parts": {"cost": {"rows": rows}}})
    assert figures.missed_promises(root, LONG_AGO) == (3, ["cost, y: missed", "cost, z: a peer is ahead"])


def test_a_page_has_steps_figures_and_no_command_that_a_reader_would_type(root: Path) -> None:
    write(root, "build/figures/bench.json", {"a_ms": {"value": 5.5, "unit": "ms"}})
    results = [
        Result(Step("bench", "make bench", 60), State.FAILED, 61.2, 100.4, "exit status 2"),
        Result(Step("fuzz", "make fuzz", 60), State.PASSED, 60, 240),
    ]
    text = page(root, results, LONG_AGO, 121)
    assert text.startswith("# Nightly run\n")
    assert "1970-01-01 00:00 UTC, commit unknown: 1 of 2 steps are good, after 2 minutes." in text
    assert "| bench | 61 | 100 | **failed**: exit status 2 |\n| fuzz | 60 | 240 | passed |" in text
    assert "| a_ms | 5.500 ms | at most 5.0 | **no** |\n| b | not measured | at least 2 | **no** |" in text
    assert not list(inline_commands("nightly.md", text))
