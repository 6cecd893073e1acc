"""The report of a run: a table of its steps; for a failed run the ends of the logs, and finally a summary of twenty lines."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pipelines import logs
from pipelines.runner import log_of
from pipelines.step import Result, State

MOST_LINES: Final = 20
_LOG_LINES: Final = 150
_WIDTH: Final = 160
#: Lines of a failed step: its name and log, what failed, how to rerun it.
_LEAST: Final = 3
#: More of a log's last lines add nothing.
_LAST_LINES: Final = 5


def table(results: Sequence[Result], total_s: float) -> list[str]:
    """Each step with its seconds, CPU seconds and result."""
    wide = max(len(one.step.name) for one in results)
    lines = [f"{'step':<{wide}}  seconds  CPU        result"]
    for one in results:
        because = f" ({one.reason})" if one.reason else ""
        lines.append(
            f"{one.step.name:<{wide}}  {one.wall_s:7.0f}  {one.processor_s:9.0f}  {one.state}{because}"
        )
    processor_s = sum(one.processor_s for one in results)
    return [*lines, f"{'total':<{wide}}  {total_s:7.0f}  {processor_s:9.0f}"]


def failing_logs(results: Sequence[Result], folder: Path) -> list[str]:
    """The ends of the failed steps' logs."""
    lines = []
    for one in _failed(results):
        found = _log(one, folder)
        lines += ["", f"--- {one.step.name}: the last lines of {log_of(folder, one.step)}"]
        lines += found[-_LOG_LINES:]
    return lines


def ending(pipeline: str, results: Sequence[Result], folder: Path) -> list[str]:
    """What failed, where, and how to rerun only that, in at most ``MOST_LINES`` lines."""
    failed = _failed(results)
    not_run = [one.step.name for one in results if one.state is State.NOT_RUN]
    head = f"{pipeline}: {len(failed)} of {len(results)} steps failed"
    lines = [_cut(f"{head}, not run: {', '.join(not_run)}" if not_run else head)]
    left = MOST_LINES - len(lines)
    shown = failed if len(failed) * _LEAST <= left else failed[: (left - 1) // _LEAST]
    rest = failed[len(shown) :]
    left -= bool(rest)
    found = [_what_failed(one, folder) for one in shown]
    limits = _divided(left - (_LEAST - 1) * len(shown), [len(what) for what, _ in found])
    for one, (what, tests), limit in zip(shown, found, limits, strict=True):
        lines += _of_step(one, folder, what, tests, limit)
    if rest:
        lines.append(_cut(f"failed as well: {', '.join(one.step.name for one in rest)}; logs in {folder}"))
    return lines


def _divided(left: int, wanted: Sequence[int]) -> list[int]:
    """Divides lines: each gets what it needs; if there are too few, those that need most get equal parts."""
    given = dict.fromkeys(range(len(wanted)), 0)
    for number, at in enumerate(sorted(given, key=lambda one: wanted[one])):
        given[at] = min(wanted[at], left // (len(wanted) - number))
        left -= given[at]
    return list(given.values())


def _what_failed(result: Result, folder: Path) -> tuple[list[str], list[str]]:
    """Lines that describe failures, and the ids of the failing tests (as many, or none)."""
    found = _log(result, folder)
    if tests := logs.failing_tests(found):
        return [one.line for one in tests], [one.test_id for one in tests]
    return logs.last_lines(found, _LAST_LINES) or ["(no output)"], []


def _of_step(
    result: Result, folder: Path, what: Sequence[str], tests: Sequence[str], limit: int
) -> list[str]:
    if tests and len(tests) > limit:
        tests = tests[: max(limit - 1, 1)]
        more = f"... and {len(what) - len(tests)} more"
        what = [*what[: limit - 1], more] if limit > 1 else [f"{what[0][: _WIDTH - len(more) - 3]} {more}"]
    return [
        f"{result.step.name}: {result.reason}, after {result.wall_s:.0f} s; log: {log_of(folder, result.step)}",
        *(_cut(f"  {line}") for line in what[-limit:]),
        f"  rerun: {result.step.rerun_command(tests)}",
    ]


def _failed(results: Sequence[Result]) -> list[Result]:
    return [one for one in results if one.state is State.FAILED]


def _log(result: Result, folder: Path) -> list[str]:
    path = log_of(folder, result.step)
    return logs.lines_of(path.read_text(errors="replace")) if path.exists() else []


def _cut(line: str) -> str:
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..."
