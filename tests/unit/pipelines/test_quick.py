"""The quick check: its steps, and the deadline of its tests."""

import os
import re
import subprocess
import sys
from pathlib import Path

from documentation.__main__ import PROJECT
from pipelines.logs import lines_of, remarks
from pipelines.quick import MOST_FILES, TESTS_S, Plan

NOW_S = 1000.0


def test_the_closest_tests_run_until_a_deadline() -> None:
    plan = Plan("main", ["a.py"], ["tests/unit/test_a.py", "tests/unit/test_b.py"], [])
    *_, tests = plan.steps(NOW_S)
    assert f"GPUSHARE_TESTS_UNTIL={NOW_S + TESTS_S:.0f} " in tests.command
    assert tests.command.endswith(" tests/unit/test_a.py tests/unit/test_b.py")
    assert tests.rerun_command(["tests/unit/test_a.py::test_x"]) == (
        "make test PYTEST_ARGS=\"-n0 'tests/unit/test_a.py::test_x'\""
    )


def test_without_tests_only_the_checks_run() -> None:
    plan = Plan("main", [], [], [])
    assert [step.name for step in plan.steps(NOW_S)] == ["format", "lint", "imports", "types"]
    assert plan.said()[-1] == "  none"


def test_tests_above_the_limit_are_reported() -> None:
    plan = Plan("main", [], ["tests/unit/test_a.py"], ["tests/unit/test_b.py", "tests/unit/test_c.py"])
    assert plan.said()[-1] == "left out: 2 more files, from tests/unit/test_b.py on"
    assert MOST_FILES > 1


def test_tests_that_have_not_begun_by_the_deadline_are_left_out_and_named(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_x(): assert False\n\ndef test_y(): assert False\n")
    command = [sys.executable, "-m", "pytest", "-p", "pipelines.deadline", "-q", "--no-cov", str(tmp_path)]
    environment = {**os.environ, "GPUSHARE_TESTS_UNTIL": "0", "PYTHONPATH": str(PROJECT)}
    done = subprocess.run(
        [*command, "-c", "/dev/null", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    remark, closing = remarks(lines_of(done.stdout))
    assert remark == "left out: 2 tests of 1 files, as the time limit was reached:"
    assert re.fullmatch(r"2 skipped in [\d.]+s", closing)
    assert "test_a.py: 2" in done.stdout
