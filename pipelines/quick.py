"""A check of a change within a minute: lint, types, import contracts, and the tests closest to what changed."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pipelines.closest import changed_files, closest_tests
from pipelines.step import Step

#: No test begins later than this many seconds after the start; a running one completes.
TESTS_S: Final = 40.0
#: Reading more test files would take longer than running them.
MOST_FILES: Final = 60
_BIN: Final = ".venv/bin"
#: CPU seconds: a second or two each, types ten.
_LITTLE: Final = 0.25
_CHECKS: Final = (
    Step("format", f"{_BIN}/ruff format --check .", 60, cores=_LITTLE),
    Step("lint", f"{_BIN}/ruff check . && {_BIN}/python scripts/house_rules.py", 60, cores=_LITTLE),
    Step("imports", f"PYTHONPATH=src {_BIN}/lint-imports --no-cache", 60, cores=_LITTLE),
    # Takes minutes without mypy's cache.
    Step("types", f"{_BIN}/mypy", 600, cores=_LITTLE),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a quick check does."""

    since: str
    changed: Sequence[str]
    tests: Sequence[str]
    left_out: Sequence[str]
    """Test files that are close to the change, but exceed the time limit."""

    def said(self) -> list[str]:
        """As text."""
        lines = [
            f"{len(self.changed)} files changed since {self.since}; closest tests, in {len(self.tests)} files:"
        ]
        lines += [f"  {path}" for path in self.tests] or ["  none"]
        if self.left_out:
            lines.append(f"left out: {len(self.left_out)} more files, from {self.left_out[0]} on")
        return lines

    def steps(self, now_s: float) -> list[Step]:
        """The checks, and the tests unless there are none; ``now_s`` in seconds of the epoch."""
        return [*_CHECKS, _tests(self.tests, now_s + TESTS_S)] if self.tests else [*_CHECKS]


def plan(root: Path) -> Plan:
    """For what changed in the checkout."""
    since, changed = changed_files(root)
    tests = closest_tests(root, changed)
    return Plan(since, changed, tests[:MOST_FILES], tests[MOST_FILES:])


def _tests(files: Sequence[str], until_s: float) -> Step:
    """In the order of the files: workers get few tests at a time."""
    command = (
        f'PATH="$PWD/{_BIN}:$PATH" GPUSHARE_TESTS_UNTIL={until_s:.0f} {_BIN}/python -m pytest -p pipelines.deadline '
        f"-n auto --dist load --maxschedchunk 8 -q -r fE {shlex.join(files)}"
    )
    return Step("tests", command, TESTS_S + 120, rerun='make test PYTEST_ARGS="-n0 {ids}"')
