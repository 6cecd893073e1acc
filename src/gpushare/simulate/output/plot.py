"""Curves as an SVG picture, without a library: a few axes and lines need none.

Colours are told apart by people with any colour vision (Okabe and Ito's), the page's own light or dark is followed.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

WIDTH: Final = 860
_LEFT: Final = 72
_RIGHT: Final = 24
_TOP: Final = 56
_BOTTOM: Final = 60
_GAP: Final = 26
#: Pixels, and lines of the grid at most: of the first panel, and of those below it.
_HEIGHTS: Final = (300, 84)
_MOST_STEPS: Final = (6, 3)
_MOST_X_STEPS: Final = 10
_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")
_DASHES: Final = ("", "7 4", "2 3", "9 3 2 3", "12 4")
_FAINT: Final = 'class="faint" stroke-width="1"'
#: Steps of a grid, times a power of ten; the second is not for whole numbers below ten.
_STEPS: Final = (1, 2, 2.5, 5, 10)
_LETTER: Final = 7.2
#: By name too: what draws PNG knows which font is the system's on few machines.
FONTS: Final = "system-ui,'DejaVu Sans','Liberation Sans','Noto Sans',Arial,sans-serif"
_STYLE: Final = """\
text{font:13px FONTS;fill:#24292f}
.title{font-size:16px;font-weight:600}
.faint{stroke:#8c959f}
.page{fill:#fff}.grid{stroke:#d0d7de}.axis{stroke:#57606a}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.page{fill:#0d1117}.grid{stroke:#30363d}.axis{stroke:#8b949e}}
"""


class Line(NamedTuple):
    """A curve: points (x, y) with growing x. ``faint``: others are compared with it."""

    name: str
    points: Sequence[tuple[float, float]]
    faint: bool = False


class Axis(NamedTuple):
    """What an axis is called, and how far it goes (from 0). ``whole``: what is counted on it comes in whole numbers."""

    name: str
    most: float
    whole: bool = False


class Panel(NamedTuple):
    """Curves over one axis of their own."""

    y: Axis
    lines: Sequence[Line]


class _Place(NamedTuple):
    """Where a panel is drawn, and up to which values."""

    top: float
    bottom: float
    most_x: float
    most_y: float

    def x(self, value: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * min(value / self.most_x, 1.0)

    def y(self, value: float) -> float:
        return self.bottom - (self.bottom - self.top) * min(value / self.most_y, 1.0)


def picture(title: str, x: Axis, panels: Sequence[Panel], *, stepped: bool = False) -> str:
    """The SVG: ``panels``, one below the other, over one ``x``, the first of them the largest.

    ``stepped``: between two points a curve stays where it was, as what is given does between two pods.
    """
    heights = [_HEIGHTS[min(number, 1)] for number in range(len(panels))]
    height = _TOP + sum(heights) + _GAP * (len(panels) - 1) + _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{_attribute(title)}">',
        f"<style>{_STYLE.replace('FONTS', FONTS)}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}"/>',
        f'<text class="title" x="{_LEFT}" y="24">{escape(title)}</text>',
    ]
    most_x = x.most if x.most > 0 else 1.0
    top = float(_TOP)
    # A curve of the same name in another panel is told apart in the same way, and named once.
    looks: dict[str, str] = {}
    for line in (line for panel in panels for line in panel.lines):
        looks.setdefault(
            line.name, _FAINT if line.faint else _look(sum(look != _FAINT for look in looks.values()))
        )
    for number, (panel, tall) in enumerate(zip(panels, heights, strict=True)):
        up = grid(panel.y, _MOST_STEPS[min(number, 1)])
        place = _Place(top, top + tall, most_x, up[-1])
        parts += _frame(panel.y, up, x, place, last=number == len(panels) - 1)
        parts += [
            f'<path d="{_path(line.points, place, stepped=stepped)}" fill="none" {looks[line.name]}>'
            f"<title>{escape(line.name)}</title></path>"
            for line in panel.lines
        ]
        top += tall + _GAP
    parts += _legend(looks)
    return "\n".join([*parts, "</svg>"]) + "\n"


def grid(axis: Axis, most_steps: int) -> list[float]:
    """Short numbers from 0 to at or above the end of ``axis``, at most ``most_steps`` apart from 0."""
    end = axis.most if axis.most > 0 else 1.0
    power = 10.0 ** math.floor(math.log10(end / most_steps))
    if axis.whole:
        power = max(power, 1.0)
    # By a hair: 100.00000000000001 is 100.
    step = next(
        power * one
        for one in _STEPS
        if end / (power * one) <= most_steps + 1e-9 and not (axis.whole and (power * one) % 1)
    )
    count = max(math.ceil(end / step - 1e-9), 1)
    return [step * number for number in range(count + 1)]


def _frame(y: Axis, up: Sequence[float], x: Axis, place: _Place, *, last: bool) -> list[str]:
    parts = []
    right = WIDTH - _RIGHT
    for value in up:
        at = place.y(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" y1="{at:.1f}" x2="{right}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{_number(value)}</text>')
    bottom = place.bottom
    for value in grid(x, _MOST_X_STEPS):
        if value > place.most_x * (1 + 1e-9):
            continue
        at = place.x(value)
        parts.append(
            f'<line class="axis" x1="{at:.1f}" y1="{bottom:.0f}" x2="{at:.1f}" y2="{bottom + 4:.0f}"/>'
        )
        if last:
            parts.append(
                f'<text x="{at:.1f}" y="{bottom + 20:.0f}" text-anchor="middle">{_number(value)}</text>'
            )
    parts.append(f'<line class="axis" x1="{_LEFT}" y1="{bottom:.0f}" x2="{right}" y2="{bottom:.0f}"/>')
    parts.append(f'<line class="axis" x1="{_LEFT}" y1="{place.top:.0f}" x2="{_LEFT}" y2="{bottom:.0f}"/>')
    if last:
        middle = (_LEFT + right) / 2
        parts.append(
            f'<text x="{middle:.0f}" y="{bottom + 44:.0f}" text-anchor="middle">{escape(x.name)}</text>'
        )
    middle = (place.top + bottom) / 2
    parts.append(
        f'<text transform="translate(18 {middle:.0f}) rotate(-90)" text-anchor="middle">{escape(y.name)}</text>'
    )
    return parts


def _legend(looks: Mapping[str, str]) -> list[str]:
    parts, at = [], float(_LEFT)
    for name, look in looks.items():
        parts.append(f'<line x1="{at:.0f}" y1="42" x2="{at + 30:.0f}" y2="42" {look}/>')
        parts.append(f'<text x="{at + 36:.0f}" y="46">{escape(name)}</text>')
        at += 36 + _LETTER * len(name) + 24
    return parts


def _look(number: int) -> str:
    dash = _DASHES[number % len(_DASHES)]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'stroke="{_COLOURS[number % len(_COLOURS)]}" stroke-width="2"{dashed}'


def _number(value: float) -> str:
    return f"{value:,.10g}"


def _path(points: Sequence[tuple[float, float]], place: _Place, *, stepped: bool) -> str:
    steps: list[str] = []
    for at_x, at_y in _thinned([(place.x(x), place.y(y)) for x, y in points]):
        to_x, to_y = f"{at_x:.1f}", f"{at_y:.1f}"
        if not steps:
            steps.append(f"M{to_x} {to_y}")
        else:
            steps.append(f"H{to_x}V{to_y}" if stepped else f"L{to_x} {to_y}")
    return "".join(steps)


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """No more points than can be told apart: of each pixel's the first, the highest, the lowest and the last."""
    found: list[tuple[float, float]] = []
    for _, alike in groupby(enumerate(points), key=lambda one: int(one[1][0])):
        there = list(alike)
        chosen = {0: there[0], 1: there[-1]}
        chosen[2] = max(there, key=lambda one: one[1][1])
        chosen[3] = min(there, key=lambda one: one[1][1])
        found += [point for _, point in sorted(set(chosen.values()))]
    return found


def _attribute(text: str) -> str:
    return escape(text, {'"': "&quot;"})
