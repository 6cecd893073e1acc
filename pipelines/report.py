"""How a run ends: a table of its steps; of a failed run the logs' ends, and at last twenty lines that say all."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pipelines import logs
from pipelines.runner import log_of
from pipelines.step import Result, State

MOST_LINES: Final = 20
_LOG_LINES: Final = 150
_WIDTH: Final = 160
#: Of a failed step: its name and log, what failed, how to rerun it.
_LEAST: Final = 3
#: More of a log's last lines say no more.
_LAST_LINES: Final = 5


def table(results: Sequence[Result], total_s: float) -> list[str]:
    """Each step with its seconds, its processors' seconds and its result."""
    wide = max(len(one.step.name) for one in results)
    lines = [f"{'step':<{wide}}  seconds  processor  result"]
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
    for number, one in enumerate(shown):
        share = left // (len(shown) - number)
        said = _of_step(one, folder, share)
        left -= len(said)
        lines += said
    if rest:
        lines.append(_cut(f"failed as well: {', '.join(one.step.name for one in rest)}; logs in {folder}"))
    return lines


def _of_step(result: Result, folder: Path, most: int) -> list[str]:
    step, found = result.step, _log(result, folder)
    tests = logs.failing_tests(found)
    room = most - (_LEAST - 1)
    if tests:
        shown = tests if len(tests) <= room else tests[: max(room - 1, 1)]
        what = [one.line for one in shown]
        more = len(tests) - len(shown)
        if more and room > 1:
            what.append(f"... and {more} more")
        elif more:
            what = [f"{what[0][: _WIDTH - 30]} ... and {more} more"]
    else:
        shown = []
        what = logs.last_lines(found, min(room, _LAST_LINES)) or ["(no output)"]
    rerun = step.rerun_command([one.test_id for one in shown])
    return [
        f"{step.name}: {result.reason}, after {result.wall_s:.0f} s; log: {log_of(folder, step)}",
        *(_cut(f"  {line}") for line in what),
        f"  rerun: {rerun}",
    ]


def _failed(results: Sequence[Result]) -> list[Result]:
    return [one for one in results if one.state is State.FAILED]


def _log(result: Result, folder: Path) -> list[str]:
    path = log_of(folder, result.step)
    return logs.lines_of(path.read_text(errors="replace")) if path.exists() else []


def _cut(line: str) -> str:
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..."
