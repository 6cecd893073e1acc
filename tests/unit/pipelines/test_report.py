"""The report of a failed run has at most twenty lines: what failed, where, and how to rerun only that."""

import re
from pathlib import Path

import pytest

from pipelines import logs
from pipelines.report import MOST_LINES, ending, failing_logs, table
from pipelines.step import Result, State, Step, UnknownStep, chosen

PYTEST_LOG = """\
tests/unit/a/test_a.py::test_one FAILED
ERROR    root:log.py:3 this is a line of a log - not of the summary
=========================== short test summary info ============================
SKIPPED [1] tests/unit/test_x.py:3: no
\x1b[31mFAILED\x1b[0m tests/unit/a/test_a.py::test_one - AssertionError: 1 - 2
FAILED tests/unit/a/test_a.py::test_two[a - b] - ValueError
ERROR tests/unit/a/test_b.py - ImportError
============ 2 failed, 7 passed, 1 skipped, 1 error in 3.21s (0:00:03) ============
make: *** [Makefile:38: test] Error 1
"""


def failed(folder: Path, name: str, log: str, rerun: str = "") -> Result:
    (folder / f"{name}.log").write_text(log)
    return Result(Step(name, f"make {name}", 60, rerun=rerun), State.FAILED, 12, 20, "exit status 2")


def test_failing_tests_are_those_of_pytests_summary() -> None:
    found = logs.failing_tests(logs.lines_of(PYTEST_LOG))
    assert [one.test_id for one in found] == [
        "tests/unit/a/test_a.py::test_one",
        "tests/unit/a/test_a.py::test_two[a - b]",
        "tests/unit/a/test_b.py",
    ]
    assert found[0].line == "FAILED tests/unit/a/test_a.py::test_one - AssertionError: 1 - 2"


@pytest.mark.parametrize(
    "line",
    [
        "3 passed in 0.10s",
        "2 failed, 13327 passed, 4 skipped, 2 warnings in 312.10s (0:05:12)",
        "no tests ran in 0.01s",
    ],
)
def test_closing_lines_are_as_pytest_writes_them(line: str) -> None:
    assert logs.closing_lines([f"===== {line} =====", line, f"it said {line}"]) == [line, line]


def test_an_ending_names_the_failures_their_logs_and_how_to_rerun_them(tmp_path: Path) -> None:
    one = failed(tmp_path, "test", PYTEST_LOG, 'make test PYTEST_ARGS="-n0 {ids}"')
    passed = Result(Step("check", "make check", 60), State.PASSED)
    waiting = Result(Step("e2e", "make e2e", 60), State.NOT_RUN, reason="needs test")
    assert ending("ci", [passed, one, waiting], tmp_path) == [
        "ci: 1 of 3 steps failed, not run: e2e",
        f"test: exit status 2, after 12 s; log: {tmp_path}/test.log",
        "  FAILED tests/unit/a/test_a.py::test_one - AssertionError: 1 - 2",
        "  FAILED tests/unit/a/test_a.py::test_two[a - b] - ValueError",
        "  ERROR tests/unit/a/test_b.py - ImportError",
        "  rerun: make test PYTEST_ARGS=\"-n0 'tests/unit/a/test_a.py::test_one' "
        "'tests/unit/a/test_a.py::test_two[a - b]' 'tests/unit/a/test_b.py'\"",
    ]


def test_other_steps_are_shown_with_their_last_lines_and_rerun_as_a_whole(tmp_path: Path) -> None:
    one = failed(tmp_path, "check", "x.py:1: error: no\n\nFound 1 error\nmake: *** [check] Error 1\n")
    assert ending("ci", [one], tmp_path)[2:] == [
        "  x.py:1: error: no",
        "  Found 1 error",
        "  rerun: make check",
    ]


@pytest.mark.parametrize("steps", [1, 2, 3, 6, 7, 30])
@pytest.mark.parametrize("tests", [0, 1, 2, 4, 100])
def test_an_ending_never_exceeds_its_limit_of_lines(tmp_path: Path, steps: int, tests: int) -> None:
    many = "".join(f"FAILED tests/unit/test_x.py::test_{number} - {'x' * 300}\n" for number in range(tests))
    log = f"some\noutput\n{'=' * 9} short test summary info {'=' * 9}\n{many}"
    results = [failed(tmp_path, f"step-{number}", log, "again {ids}") for number in range(steps)]
    results.append(Result(Step("last", "true", 1), State.NOT_RUN))
    lines = ending("ci", results, tmp_path)
    assert len(lines) <= MOST_LINES
    text = "\n".join(lines)
    assert all(f"step-{number}" in text for number in range(min(steps, 6)))
    if tests == 100 and steps <= 6:
        assert len(re.findall(r"\.\.\. and \d+ more", text)) == steps
    if tests and steps == 1:
        assert "again 'tests/unit/test_x.py::test_0'" in text


def test_lines_that_one_step_does_not_need_go_to_another(tmp_path: Path) -> None:
    many = "".join(f"FAILED tests/unit/test_x.py::test_{number}\n" for number in range(100))
    results = [
        failed(tmp_path, "test", f"{'=' * 9} short test summary info {'=' * 9}\n{many}"),
        failed(tmp_path, "check", "no"),
    ]
    lines = ending("ci", results, tmp_path)
    assert len(lines) == MOST_LINES
    assert "  ... and 87 more" in lines


def test_makes_error_about_a_missing_target_is_shown(tmp_path: Path) -> None:
    error = "make: *** No rule to make target 'x'.  Stop."
    assert f"  {error}" in ending("ci", [failed(tmp_path, "x", f"before\n{error}\n")], tmp_path)


def test_steps_that_do_not_fit_are_named(tmp_path: Path) -> None:
    results = [failed(tmp_path, f"step-{number}", "no") for number in range(8)]
    assert ending("nightly", results, tmp_path)[-1].startswith("failed as well: step-6, step-7; logs in ")


def test_a_step_without_output_is_marked_as_such(tmp_path: Path) -> None:
    assert "  (no output)" in ending("ci", [failed(tmp_path, "a", "")], tmp_path)


def test_the_end_of_long_logs_is_shown(tmp_path: Path) -> None:
    log = "\n".join(f"line {number}" for number in range(1000))
    lines = failing_logs([failed(tmp_path, "a", log)], tmp_path)
    assert lines[1] == f"--- a: the last lines of {tmp_path}/a.log"
    assert (lines[2], lines[-1]) == ("line 850", "line 999")


def test_the_table_has_a_line_for_each_step(tmp_path: Path) -> None:
    results = [
        Result(Step("check", "make check", 60), State.PASSED, 10.4, 12.6),
        Result(Step("peers", "make peers", 60), State.SKIPPED, 1, 0, "there is none"),
    ]
    assert table(results, 11) == [
        "step   seconds  CPU        result",
        "check       10         13  passed",
        "peers        1          0  skipped (there is none)",
        "total       11         13",
    ]


def test_ids_are_quoted_for_the_shell_and_make() -> None:
    step = Step("test", "make test", 1, rerun='make test PYTEST_ARGS="{ids}"')
    assert step.rerun_command(["t.py::t[$x]", 't.py::t["]', "t.py::t[it's]"]) == (
        """make test PYTEST_ARGS="'t.py::t[\\$\\$x]' 't.py::t[\\"]' 't.py::t[it'\\"'\\"'s]'\""""
    )


def test_where_tests_cannot_be_selected_by_path_names_are_used() -> None:
    step = Step("e2e", "make e2e", 1, rerun="make e2e E2E_ARGS=\"-k '{names}'\"")
    failing = ["tests/e2e/test_a.py::test_b[x]", "tests/e2e/test_a.py::test_b[y]", "tests/e2e/test_c.py"]
    assert step.rerun_command(failing) == "make e2e E2E_ARGS=\"-k 'test_b or test_c'\""


def test_named_steps_bring_what_they_need() -> None:
    steps = [Step(name, "true", 1, needs=needs) for name, needs in (("a", ()), ("b", ("a",)), ("c", ()))]
    assert [one.name for one in chosen(steps, ["b"])] == ["a", "b"]
    assert chosen(steps, []) == steps
    with pytest.raises(UnknownStep, match="no step x; there are a, b, c"):
        chosen(steps, ["x"])
