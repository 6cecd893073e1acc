"""From pictures as SVG to files: SVG as it is, PNG by resvg, which the extra ``png`` brings."""

from pathlib import Path
from typing import Final

from gpushare.simulate.errors import SimulateError
from gpushare.simulate.output.plot import FONTS

_ZOOM: Final = 2
_LETTER: Final = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20"><text x="2" y="16" '
    f'font-family="{FONTS}">{{}}</text></svg>'
)


def write_picture(path: Path, svg: str) -> None:
    """Write ``svg`` to ``path``, as PNG where that is what its name ends with. Raises ``SimulateError`` and ``OSError``."""
    if path.suffix != ".png":
        path.write_text(svg, encoding="utf-8")
        return
    path.write_bytes(png_of(svg, f"--plot {path}"))


def png_of(svg: str, subject: str) -> bytes:
    """The picture in twice its size; raises ``SimulateError`` about ``subject`` where it cannot be drawn in full."""
    try:
        from resvg_py import svg_to_bytes
    except ImportError:
        raise SimulateError(
            subject,
            "PNG is drawn by the package resvg-py, which is not installed: pip install resvg-py "
            "(gpushare's extra png), or write .svg",
        ) from None
    # Where there is no font it leaves texts out, and says nothing.
    if svg_to_bytes(svg_string=_LETTER.format("M")) == svg_to_bytes(svg_string=_LETTER.format("")):
        raise SimulateError(
            subject,
            "this machine has no fonts for a PNG's texts: install some (Debian and Ubuntu: fonts-dejavu-core), or write .svg",
        )
    return svg_to_bytes(svg_string=svg, zoom=_ZOOM)
