"""A plugin of pytest for ``quick``: tests that have not begun at ``$GPUSHARE_TESTS_UNTIL`` (seconds of the epoch) are left out."""

import os
import time
from collections import Counter

import pytest

_REASON = "the time limit was reached"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Skip, before any fixture is set up."""
    if time.time() > float(os.environ["GPUSHARE_TESTS_UNTIL"]):
        pytest.skip(_REASON)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the files whose tests were left out."""
    skipped = terminalreporter.stats.get("skipped", [])
    files = Counter(one.nodeid.partition("::")[0] for one in skipped if _REASON in str(one.longrepr))
    if files:
        terminalreporter.write_line(
            f"left out: {files.total()} tests of {len(files)} files, as the time limit was reached:"
        )
        for path in sorted(files):
            terminalreporter.write_line(f"  {path}: {files[path]}")
