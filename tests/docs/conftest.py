"""What was not run is listed at the end, with the reason: nothing is passed over in silence."""

import pytest

from tests.docs.test_commands import NOT_RUN


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.getreports(kind)]
    listed = sorted(
        {str(value) for report in reports for name, value in report.user_properties if name == NOT_RUN}
    )
    if listed:
        terminalreporter.section("commands of the documentation that need another place")
        for line in listed:
            terminalreporter.write_line(line)
