"""``python3 -m pipelines ci|nightly|quick [STEP …]``: runs a pipeline, or the named steps with what they need."""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from pipelines import ci, nightly, quick, report, summary
from pipelines.runner import Runner
from pipelines.step import Result, Step, UnknownStep, chosen

ROOT: Final = Path(__file__).resolve().parent.parent
LOGS: Final = Path("build/logs")
SUMMARY: Final = Path("build/nightly.md")
PIPELINES: Final[dict[str, Sequence[Step]]] = {"ci": ci.STEPS, "nightly": nightly.STEPS}
#: Its steps depend on what changed.
QUICK: Final = "quick"


def main(arguments: list[str] | None = None) -> int:
    """Run the requested steps; the exit status is 1 if a step failed or could not run."""
    parser = argparse.ArgumentParser(prog="python3 -m pipelines", description=__doc__)
    parser.add_argument("pipeline", choices=[*PIPELINES, QUICK])
    parser.add_argument("steps", nargs="*", metavar="STEP", help="run only these steps, and those they need")
    parser.add_argument("--list", action="store_true", help="only list the steps")
    options = parser.parse_args(arguments)
    began = time.time()
    try:
        steps = chosen(_steps(options.pipeline, began), options.steps)
    except UnknownStep as error:
        parser.error(str(error))
    if options.list:
        print("\n".join(f"{step.name:<16} {step.command}" for step in steps))
        return 0
    os.chdir(ROOT)
    write = (lambda results: _summarise(results, began)) if options.pipeline == "nightly" else None
    return run(options.pipeline, steps, LOGS, write)


def run(
    pipeline: str, steps: Sequence[Step], logs: Path, write: Callable[[Sequence[Result]], None] | None = None
) -> int:
    """Run the steps, report, and exit with the status; ``write`` is called with the results first."""
    runner = Runner(steps, logs, _say)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: runner.stop())
    began = time.monotonic()
    results = runner.run()
    _say("\n".join(["", *report.table(results, time.monotonic() - began)]))
    if write:
        write(results)
    if all(one.good for one in results):
        return 0
    _say("\n".join([*report.failing_logs(results, logs), "", *report.ending(pipeline, results, logs)]))
    return 1


def _steps(pipeline: str, now_s: float) -> Sequence[Step]:
    if pipeline != QUICK:
        return PIPELINES[pipeline]
    plan = quick.plan(ROOT)
    _say("\n".join([*plan.said(), ""]))
    return plan.steps(now_s)


def _summarise(results: Sequence[Result], began: float) -> None:
    SUMMARY.parent.mkdir(exist_ok=True)
    SUMMARY.write_text(summary.page(ROOT, results, began, time.time() - began))
    _say(f"\nWritten: {SUMMARY}")


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
