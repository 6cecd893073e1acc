"""What was not run is listed at the end, with the reason: nothing is passed over in silence."""

import pytest

from tests.docs.playgrounds import NOT_RUN


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if NOT_RUN:
        terminalreporter.section("commands of the documentation that need another place")
        for where, reason in NOT_RUN:
            terminalreporter.write_line(f"{where}: {reason}")
