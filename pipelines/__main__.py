"""``python3 -m pipelines ci [STEP …]``: runs a pipeline, or the named steps with what they need."""

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pipelines import ci, report
from pipelines.runner import Runner
from pipelines.step import Step, UnknownStep, chosen

ROOT: Final = Path(__file__).resolve().parent.parent
LOGS: Final = Path("build/logs")
PIPELINES: Final[dict[str, Sequence[Step]]] = {"ci": ci.STEPS}


def main(arguments: list[str] | None = None) -> int:
    """Run what is asked for; the exit status is 1 when a step failed or could not run."""
    parser = argparse.ArgumentParser(prog="python3 -m pipelines", description=__doc__)
    parser.add_argument("pipeline", choices=PIPELINES)
    parser.add_argument("steps", nargs="*", metavar="STEP", help="only these, and what they need")
    options = parser.parse_args(arguments)
    try:
        steps = chosen(PIPELINES[options.pipeline], options.steps)
    except UnknownStep as error:
        parser.error(str(error))
    os.chdir(ROOT)
    return run(options.pipeline, steps, LOGS)


def run(pipeline: str, steps: Sequence[Step], logs: Path) -> int:
    """Run the steps and report; the exit status."""
    runner = Runner(steps, logs, _say)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: runner.stop())
    began = time.monotonic()
    results = runner.run()
    lines = ["", *report.table(results, time.monotonic() - began)]
    good = all(one.good for one in results)
    if not good:
        lines += [*report.failing_logs(results, logs), "", *report.ending(pipeline, results, logs)]
    _say("\n".join(lines))
    return 0 if good else 1


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
