"""A section of ``make gpu-check`` that fails or hangs does not affect others, and the report is always complete."""

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.gpu_check.__main__ import part
from benchmarks.gpu_check.lab import Unanswered
from benchmarks.gpu_check.report import Heading, Report, Row, measured
from benchmarks.gpu_check.running import Clock, run

HEADING = Heading("2026-11-28", "a GPU", "NVIDIA 580", False, "make gpu-check")


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return Report(tmp_path / "report.md", HEADING)


def whole(report: Report) -> str:
    """The report as a reader finds it now, or after the check was killed: its tables end, and its summary counts their rows."""
    text = report.path.read_text()
    assert text.endswith("\n")
    assert report.summary() in text
    assert [path.name for path in report.path.parent.iterdir()] == [report.path.name]
    return text


def lab(seconds: float = 60) -> Any:
    return SimpleNamespace(clock=Clock(seconds))


def good(_lab: Any) -> Iterator[Row]:
    yield measured("a row of the next section", "there")


def fails(_lab: Any) -> Iterator[Row]:
    yield measured("a row", "there")
    raise ZeroDivisionError("of an unexpected kind")


def answers_nothing(_lab: Any) -> Iterator[Row]:
    yield measured("a row", "there")
    raise Unanswered("ended by SIGSEGV")


def has_a_program_that_hangs(lab: Any) -> Iterator[Row]:
    yield measured("a row", "there")
    outcome = run(
        [sys.executable, "-c", "import signal; signal.pause()"],
        environment=os.environ,
        timeout_s=lab.clock.at_most_s(1000),
    )
    yield measured("the program", outcome.words())


def hangs(_lab: Any) -> Iterator[Row]:
    yield measured("a row", "there")
    threading.Event().wait()
    yield measured("never", "there")


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (fails, "ZeroDivisionError: of an unexpected kind | **FAILED**"),
        (answers_nothing, "ended by SIGSEGV | **FAILED**"),
        (has_a_program_that_hangs, "| did not end within "),
        (hangs, "it had not finished after 2 s | **FAILED**"),
    ],
)
def test_a_section_that_fails_or_hangs_ends_only_itself(report: Report, rows: Any, expected: str) -> None:
    there = lab()
    part(report, there, "The first", 2, rows, grace_s=0 if rows is hangs else 60)
    text = whole(report)
    assert "| a row |  | there |" in text
    assert expected in text
    part(report, there, "The next", 2, good)
    assert "| a row of the next section |  | there |" in whole(report)


def test_the_report_is_whole_after_each_row(report: Report) -> None:
    def rows(_lab: Any) -> Iterator[Row]:
        assert whole(report).endswith("## The only one\n\nNothing yet.\n")
        for number in range(3):
            yield measured(f"row {number}", "there")
            assert f"| row {number} |  | there |" in whole(report)
            assert "Not finished" in whole(report)

    part(report, lab(), "The only one", 60, rows)
    report.end("Ended in order")
    assert "Not finished" not in whole(report)


def test_a_section_without_time_left_is_not_run(report: Report) -> None:
    part(report, lab(0), "The last", 60, good)
    assert "no time left" in whole(report)
