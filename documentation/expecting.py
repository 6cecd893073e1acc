"""Whether the output matches a page: `…` matches anything in a line, a line with only `…` any lines."""

import re
from collections.abc import Sequence
from typing import Final

ANYTHING: Final = "…"


def matches(expected: Sequence[str], came_out: str) -> bool:
    """Whether ``came_out`` matches the lines. The number of blanks, and blanks at line ends, do not matter."""
    lines = [line.split() for line in came_out.strip().splitlines()]
    wanted = [line.strip() for line in "\n".join(expected).strip().splitlines()]
    return _match(wanted, lines)


def _match(wanted: list[str], lines: list[list[str]]) -> bool:
    reached = {0}
    for line in wanted:
        if line == ANYTHING:
            reached = set(range(min(reached), len(lines) + 1))
        else:
            pattern = _pattern(line)
            reached = {at + 1 for at in reached if at < len(lines) and pattern.fullmatch(" ".join(lines[at]))}
        if not reached:
            return False
    return len(lines) in reached


def _pattern(line: str) -> re.Pattern[str]:
    parts = [re.escape(" ".join(part.split())) for part in line.split(ANYTHING)]
    return re.compile(r"\s*.*?\s*".join(parts))
