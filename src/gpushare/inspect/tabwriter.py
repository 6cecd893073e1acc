"""Text in columns, as Go's ``text/tabwriter`` sets it with two spaces of padding.

A *line* is a list of cells; all but the last end a column. A column reaches over neighbouring lines that
have it and no further, so a line of one cell separates what is above from what is below: that is how
``NAME:  …`` and the table under it come to have widths of their own. Blanks at a line's end are left out.
"""

from collections.abc import Sequence
from typing import Final

PADDING: Final = 2

Line = Sequence[str]


def aligned(lines: Sequence[Line]) -> list[str]:
    """The lines as text, without line ends. Cost: linear in the number of cells."""
    lines = [[printable(cell) for cell in line] for line in lines]
    widths: list[list[int]] = [[] for _ in lines]
    column = 0
    having = [index for index, line in enumerate(lines) if len(line) > 1]
    while having:
        for run in _runs(having):
            width = max(len(lines[index][column]) for index in run) + PADDING
            for index in run:
                widths[index].append(width)
        column += 1
        having = [index for index in having if len(lines[index]) > column + 1]
    return [_set(line, line_widths) for line, line_widths in zip(lines, widths, strict=True)]


def printable(text: str) -> str:
    """``text`` with what would move the cursor, or end the line, as ``?``.

    Models and reasons come from annotations: whoever may write those must not write on a terminal.
    """
    return text if text.isprintable() else "".join(sign if sign.isprintable() else "?" for sign in text)


def raw_length(line: Line) -> int:
    """How long the line is before it is set in columns: a tab between cells, and the line's end."""
    return sum(map(len, line)) + max(len(line), 1)


def _runs(indices: Sequence[int]) -> list[list[int]]:
    """``indices`` in runs of neighbours: 1 2 4 5 → [1 2] [4 5]."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return runs


def _set(line: Line, widths: Sequence[int]) -> str:
    cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=False)]
    return "".join([*cells, *line[len(widths) :]]).rstrip()
