"""The Python sources of our packages, by the name that pages and tests use for a module."""

from pathlib import Path
from typing import Final

#: Package → prefix of its modules' names.
_PACKAGES: Final = {"gpushare": "", "gpushare_playground": "playground/"}


def modules(src: Path) -> list[tuple[str, Path]]:
    """Every module below ``src``: its name (``scheduler/main.py``, ``playground/objects.py``) and its file, sorted."""
    return sorted(
        (before + path.relative_to(src / package).as_posix(), path)
        for package, before in _PACKAGES.items()
        for path in (src / package).rglob("*.py")
    )
