"""Aligns text in columns, as Go's ``text/tabwriter`` does with two spaces of padding.

A *line* is a list of cells; all but the last end a column. A column spans adjacent lines that have it, so a line of one cell
separates the lines above it from those below. For example, ``NAME:  …`` and the table under it have independent widths.
Trailing blanks are removed.
"""

from collections.abc import Sequence
from typing import Final

PADDING: Final = 2

Line = Sequence[str]


def aligned(lines: Sequence[Line]) -> list[str]:
    """The aligned lines, without line ends. Complexity: linear in the number of cells."""
    lines = [[printable(cell) for cell in line] for line in lines]
    widths: list[list[int]] = [[] for _ in lines]
    column = 0
    remaining = [index for index, line in enumerate(lines) if len(line) > 1]
    while remaining:
        for run in _runs(remaining):
            width = max(len(lines[index][column]) for index in run) + PADDING
            for index in run:
                widths[index].append(width)
        column += 1
        remaining = [index for index in remaining if len(lines[index]) > column + 1]
    return [_padded(line, line_widths) for line, line_widths in zip(lines, widths, strict=True)]


def printable(text: str) -> str:
    """``text`` with every non-printable character as ``?``.

    Models and reasons come from annotations, whose authors must not be able to send control sequences to a terminal.
    """
    return (
        text
        if text.isprintable()
        else "".join(character if character.isprintable() else "?" for character in text)
    )


def raw_length(line: Line) -> int:
    """Length of the line before alignment, with a tab between cells and the line end."""
    return sum(map(len, line)) + max(len(line), 1)


def _runs(indices: Sequence[int]) -> list[list[int]]:
    """``indices`` grouped into consecutive runs: 1 2 4 5 → [1 2] [4 5]."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return runs


def _padded(line: Line, widths: Sequence[int]) -> str:
    cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=False)]
    return "".join([*cells, *line[len(widths) :]]).rstrip()
