"""Curves as an SVG picture, without a library: a few axes and lines need none.

Colours are told apart by people with any colour vision (Okabe and Ito's), the page's own light or dark is followed.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

WIDTH: Final = 860
HEIGHT: Final = 440
_LEFT: Final = 64
_RIGHT: Final = 24
_TOP: Final = 56
_BOTTOM: Final = 64
_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")
_DASHES: Final = ("", "7 4", "2 3", "9 3 2 3", "12 4")
_MOST_POINTS: Final = 1200
#: In fifths each of them gives short numbers.
_ENDS: Final = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)
_STYLE: Final = """\
text{font:13px system-ui,'DejaVu Sans',sans-serif;fill:#24292f}
.title{font-size:16px;font-weight:600}
.page{fill:#fff}.grid{stroke:#d0d7de}.axis{stroke:#57606a}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.page{fill:#0d1117}.grid{stroke:#30363d}.axis{stroke:#8b949e}}
"""


class Line(NamedTuple):
    """A curve: points (x, y) with growing x."""

    name: str
    points: Sequence[tuple[float, float]]


class Axis(NamedTuple):
    """What an axis is called, and how far it goes (from 0)."""

    name: str
    most: float


def picture(title: str, x: Axis, y: Axis, lines: Sequence[Line], *, stepped: bool = False) -> str:
    """The SVG. ``stepped``: between two points a curve stays where it was, as what is given does between two pods."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" aria-label="{_attribute(title)}">',
        f"<style>{_STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}"/>',
        f'<text class="title" x="{_LEFT}" y="24">{escape(title)}</text>',
        *_axes(x, y),
    ]
    for number, line in enumerate(lines):
        colour, dash = _COLOURS[number % len(_COLOURS)], _DASHES[number % len(_DASHES)]
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        parts.append(
            f'<path d="{_path(line.points, x, y, stepped=stepped)}" fill="none" stroke="{colour}" stroke-width="2"'
            f"{dashed}><title>{escape(line.name)}</title></path>"
        )
    parts += _legend([line.name for line in lines])
    return "\n".join([*parts, "</svg>"]) + "\n"


def rounded_up(value: float) -> float:
    """A number not below ``value`` at which an axis may end: one of a few times a power of ten."""
    if value <= 0:
        return 1.0
    power = 1.0
    while power * 10 <= value:
        power *= 10
    while power > value:
        power /= 10
    return next(power * step for step in _ENDS if power * step >= value)


def _axes(x: Axis, y: Axis) -> list[str]:
    parts = []
    bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
    for number in range(6):
        at = _y(y.most * number / 5, y)
        parts.append(f'<line class="grid" x1="{_LEFT}" y1="{at:.1f}" x2="{right}" y2="{at:.1f}"/>')
        parts.append(
            f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{y.most * number / 5:g}</text>'
        )
        at = _x(x.most * number / 5, x)
        parts.append(
            f'<text x="{at:.1f}" y="{bottom + 20}" text-anchor="middle">{x.most * number / 5:g}</text>'
        )
    parts.append(f'<line class="axis" x1="{_LEFT}" y1="{bottom}" x2="{right}" y2="{bottom}"/>')
    parts.append(f'<line class="axis" x1="{_LEFT}" y1="{_TOP}" x2="{_LEFT}" y2="{bottom}"/>')
    middle = (_LEFT + right) / 2
    parts.append(f'<text x="{middle:.0f}" y="{HEIGHT - 18}" text-anchor="middle">{escape(x.name)}</text>')
    middle = (_TOP + bottom) / 2
    parts.append(
        f'<text transform="translate(18 {middle:.0f}) rotate(-90)" text-anchor="middle">{escape(y.name)}</text>'
    )
    return parts


def _legend(named: Sequence[str]) -> list[str]:
    parts, at = [], float(_LEFT)
    for number, name in enumerate(named):
        colour, dash = _COLOURS[number % len(_COLOURS)], _DASHES[number % len(_DASHES)]
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        parts.append(
            f'<line x1="{at:.0f}" y1="42" x2="{at + 30:.0f}" y2="42" stroke="{colour}" stroke-width="2"{dashed}/>'
        )
        parts.append(f'<text x="{at + 36:.0f}" y="46">{escape(name)}</text>')
        at += 36 + 7.5 * len(name) + 24
    return parts


def _path(points: Sequence[tuple[float, float]], x: Axis, y: Axis, *, stepped: bool) -> str:
    every = max(-(-len(points) // _MOST_POINTS), 1)
    chosen = [*points[::every], *([points[-1]] if (len(points) - 1) % every else [])]
    steps: list[str] = []
    for at_x, at_y in chosen:
        to_x, to_y = f"{_x(at_x, x):.1f}", f"{_y(at_y, y):.1f}"
        if not steps:
            steps.append(f"M{to_x} {to_y}")
        else:
            steps.append(f"H{to_x}V{to_y}" if stepped else f"L{to_x} {to_y}")
    return "".join(steps)


def _x(value: float, axis: Axis) -> float:
    return _LEFT + (WIDTH - _LEFT - _RIGHT) * min(value / axis.most, 1.0)


def _y(value: float, axis: Axis) -> float:
    return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * min(value / axis.most, 1.0)


def _attribute(text: str) -> str:
    return escape(text, {'"': "&quot;"})
