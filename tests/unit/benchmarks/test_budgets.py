"""Figures are checked against their budgets except in quick runs; a run of all parts must have every figure."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import benchmarks.__main__ as command
from benchmarks.budgets import unmeasured
from benchmarks.reference import REFERENCE_MS, reference_ms

FIGURES = {"slow_ms": (7.0, "ms"), "rate_per_s": (9.0, "1/s")}


def run(
    monkeypatch: pytest.MonkeyPatch,
    root: Path,
    budgets: dict[str, dict[str, Any]],
    *arguments: str,
    reference_ms: float = REFERENCE_MS,
) -> int:
    (root / "benchmarks").mkdir(exist_ok=True)
    (root / "benchmarks" / "budgets.json").write_text(json.dumps(budgets))
    part, other = ModuleType("measured"), ModuleType("measures_nothing")
    part.measure = lambda quick: FIGURES  # type: ignore[attr-defined]
    other.measure = lambda quick: {}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "measured", part)
    monkeypatch.setitem(sys.modules, "measures_nothing", other)
    monkeypatch.setattr(command, "reference_ms", lambda: reference_ms)
    monkeypatch.setattr(command, "ROOT", root)
    monkeypatch.setattr(command, "PARTS", {"part": "measured", "other": "measures_nothing"})
    monkeypatch.setattr(sys, "argv", ["bench", *arguments])
    return command.main()


def test_a_figure_above_its_maximum_or_below_its_minimum_fails_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, tmp_path, {"slow_ms": {"most": 7.0}, "rate_per_s": {"least": 9.0}}) == 0
    assert run(monkeypatch, tmp_path, {"slow_ms": {"most": 6.9}, "rate_per_s": {"least": 9.1}}) == 1
    output = capsys.readouterr().out
    assert "OVER BUDGET: slow_ms is 7.000 ms, more than 6.9" in output
    assert "OVER BUDGET: rate_per_s is 9.000 1/s, less than 9.1" in output


@pytest.mark.parametrize(("slower", "code"), [(0.5, 1), (1.0, 1), (2.0, 0)])
def test_a_slower_machine_has_as_much_more_time_and_a_faster_one_no_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slower: float, code: int
) -> None:
    budgets = {"slow_ms": {"most": 3.6, "unit": "ms"}, "rate_per_s": {"least": 17.0, "unit": "1/s"}}
    assert run(monkeypatch, tmp_path, budgets, reference_ms=slower * REFERENCE_MS) == code
    assert run(monkeypatch, tmp_path, {"slow_ms": {"most": 3.6}}, reference_ms=slower * REFERENCE_MS) == 1
    written = json.loads((tmp_path / "build" / "figures" / "bench.json").read_text())
    assert written["slow_ms"] == {"value": 7.0, "unit": "ms", "most": 3.6}


def test_the_reference_takes_time() -> None:
    assert reference_ms() > 1.0


def test_a_figure_missing_from_a_run_of_all_parts_fails_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    budgets = {"slow_ms": {"most": 9.0}, "gone_ms": {"most": 1.0}}
    assert run(monkeypatch, tmp_path, budgets) == 1
    assert "MISSING: gone_ms was not measured" in capsys.readouterr().out
    assert run(monkeypatch, tmp_path, budgets, "other", "part") == 1
    assert run(monkeypatch, tmp_path, budgets, "part") == 0, "not all were requested"


def test_a_quick_run_checks_no_budget_but_requires_every_figure_in_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, tmp_path, {"slow_ms": {"most": 1.0}, "rate_per_s": {"most": 1.0}}, "--quick") == 0
    assert "no figure is compared with its budget" in capsys.readouterr().out
    assert run(monkeypatch, tmp_path, {"gone_ms": {"most": 1.0}}, "--quick") == 1
    assert "MISSING: gone_ms was not measured" in capsys.readouterr().out
    assert run(monkeypatch, tmp_path, {"gone_ms": {"most": 1.0}}, "--quick", "part") == 0, "not all parts"


def test_sizes_are_numbers_between_underscores() -> None:
    small = {"filter_p99_ms_500": (1.0, "ms"), "ratio_50_to_10": (1.0, "")}
    assert unmeasured(small, {"filter_p99_ms_5000": {}, "ratio_50000_to_1000": {}}, any_size=True) == []
    assert unmeasured(small, {"filter_p99_ms_5000": {}}) == ["filter_p99_ms_5000 was not measured"]
    assert unmeasured(small, {"filter_p50_ms_5000": {}}, any_size=True) != []
