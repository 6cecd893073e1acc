"""From pictures as SVG to files: SVG as it is, PNG by the program ``rsvg-convert``."""

import subprocess
from pathlib import Path
from typing import Final

from gpushare.simulate.errors import SimulateError

_CONVERTER: Final = "rsvg-convert"
_CONVERT_S: Final = 60.0


def write_picture(path: Path, svg: str) -> None:
    """Write ``svg`` to ``path``, as PNG where that is what its name ends with. Raises ``SimulateError`` and ``OSError``."""
    if path.suffix != ".png":
        path.write_text(svg, encoding="utf-8")
        return
    command = [_CONVERTER, "--zoom=2", "--format=png", f"--output={path}"]
    try:
        ran = subprocess.run(
            command, input=svg.encode(), capture_output=True, timeout=_CONVERT_S, check=False
        )
    except FileNotFoundError:
        raise SimulateError(
            f"--plot {path}",
            f"PNG is made by {_CONVERTER}, which is not on PATH: install it (Debian and Ubuntu: librsvg2-bin), or write .svg",
        ) from None
    except subprocess.TimeoutExpired:
        raise SimulateError(f"--plot {path}", f"{_CONVERTER} did not end within {_CONVERT_S:.0f} s") from None
    if ran.returncode:
        said = ran.stderr.decode(errors="replace").strip()
        raise SimulateError(f"--plot {path}", f"{_CONVERTER} failed: {said}")
