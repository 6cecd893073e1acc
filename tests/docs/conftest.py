"""Lists blocks that were not typed here at the end, each with its place or the reason, and counts all: none is skipped silently."""

import pytest

from tests.docs.places import counted
from tests.docs.test_commands import BLOCK
from tests.docs.test_inline_commands import COUNTED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.getreports(kind)]
    # Page and line of each block, and the result of ``place_of``.
    blocks = {tuple(value) for one in reports for name, value in one.user_properties if name == BLOCK}
    inline = [value for one in reports for name, value in one.user_properties if name == COUNTED]
    if not (blocks or inline):
        return
    terminalreporter.section("commands of the documentation that need another place")
    for where, _, _, note in sorted(blocks, key=_by_line):
        if note:
            terminalreporter.write_line(f"{where}: {note}")
    if blocks:
        terminalreporter.write_line(counted((place, path) for _, place, path, _ in blocks))
    for line in inline:
        terminalreporter.write_line(line)


def _by_line(block: tuple[str, ...]) -> tuple[str, int]:
    page, _, line = block[0].rpartition(":")
    return page, int(line)
