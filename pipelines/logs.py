"""Extracts from step logs: pytest's closing lines, failing tests, last lines."""

import re
from dataclasses import dataclass
from typing import Final

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_CLOSING: Final = re.compile(
    r"^=*\s*((?:\d+ [a-z]+(?:, \d+ [a-z]+)*|no tests ran) in [\d.]+s(?: \([\d:, a-z]+\))?)\s*=*$"
)
_SUMMARY: Final = re.compile(r"^=+ short test summary info =+$")
#: A parameter may hold anything: its bracket ends before " - " or at the line's end.
_FAILING: Final = re.compile(r"^(?:FAILED|ERROR) ([^\s\[]+(?:\[.*?\](?= - |$))?)(?: - .*)?$")
_OF_MAKE: Final = re.compile(
    r"^make(\[\d+\])?: (\*\*\* \[.*\] Error \d+|Entering directory|Leaving directory)"
)


@dataclass(frozen=True, slots=True)
class FailingTest:
    """A test that failed or could not be set up."""

    test_id: str
    line: str
    """As pytest's summary has it, with the message."""


def lines_of(text: str) -> list[str]:
    """The lines of a log without colours."""
    return _COLOUR.sub("", text).splitlines()


def closing_lines(lines: list[str]) -> list[str]:
    """How each run of pytest ended, such as ``3 passed in 1.20s``."""
    return [found[1] for line in lines if (found := _CLOSING.match(line))]


def remarks(lines: list[str]) -> list[str]:
    """The parts of a step's output that the whole run repeats: pytest's closing lines, and what was left out."""
    return [line for line in lines if line.startswith("left out: ")] + closing_lines(lines)


def failing_tests(lines: list[str]) -> list[FailingTest]:
    """The tests in pytest's short summaries that failed, each once."""
    found: dict[str, FailingTest] = {}
    in_summary = False
    for line in lines:
        if _SUMMARY.match(line):
            in_summary = True
        elif _CLOSING.match(line):
            in_summary = False
        # Workers of xdist can fail, too.
        elif in_summary and (test := _FAILING.match(line)) and ".py" in test[1]:
            found.setdefault(test[1], FailingTest(test[1], line))
    return list(found.values())


def last_lines(lines: list[str], most: int) -> list[str]:
    """The last informative lines; make's own line on a failed recipe is used only if there is nothing else."""
    said = [line for line in lines if line.strip()]
    return [line for line in said if not _OF_MAKE.match(line)][-most:] or said[-most:]


def why_skipped(lines: list[str]) -> str:
    """The reason when a step's last line says ``skipped: REASON``."""
    last = last_lines(lines, 1)
    return last[0].removeprefix("skipped: ") if last and last[0].startswith("skipped: ") else ""
