"""Files that contain the version. ``src/gpushare/__init__.py`` has it for Python, packages and images; the others cannot read it there."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pipelines.release import Refused

_SOURCE: Final = "src/gpushare/__init__.py"
_WRITTEN: Final = re.compile(r'^__version__ = "(.*)"$', re.MULTILINE)
_VERSION: Final = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")


@dataclass(frozen=True, slots=True)
class Place:
    """A file that contains the version, and the text around it: ``{}`` is the version."""

    path: str
    text: str
    becomes: str = ""
    """The text for the next version, if it differs. Such a text may be missing."""


_CHARTS: Final = ("charts/ack-ai-installer/Chart.yaml", "charts/ack-co-scheduler/Chart.yaml")
PLACES: Final = (
    Place(_SOURCE, '__version__ = "{}"\n'),
    # helm takes both from the checkout, too, where nothing has filled them in.
    *(Place(chart, "\nversion: {}\n") for chart in _CHARTS),
    *(Place(chart, '\nappVersion: "{}"\n') for chart in _CHARTS),
    Place("images/Containerfile", "\nARG VERSION={}\n"),
    Place("docs/developer/images.md", "/gpushare:{} "),
    Place("docs/guide/install.md", "/gpushare:{}"),
    Place("docs/guide/install.md", "/gpushare.tar:{}"),
    Place("docs/developer/scheduler-plugins.md", "/gpushare:{}\n"),
    Place("docs/operation/operate.md", "| after {} |", becomes="| {} |"),
)


def current(root: Path) -> str:
    """The version of a checkout; raises ``Refused``."""
    found = _WRITTEN.search((root / _SOURCE).read_text())
    if found is None or not _VERSION.fullmatch(found[1]):
        raise Refused(f'{_SOURCE}: no line __version__ = "x.y.z"; write one')
    return found[1]


def check_next(old: str, new: str) -> None:
    """Raises ``Refused`` unless ``new`` is a version, and greater."""
    if not _VERSION.fullmatch(new):
        raise Refused(f"VERSION {new}: write three numbers, such as {_after(old)}")
    if _numbers(new) <= _numbers(old):
        raise Refused(
            f"VERSION {new}: not greater than {old}, the present one; write a greater one, such as {_after(old)}"
        )


def changed(root: Path, old: str, new: str) -> dict[str, str]:
    """The new text of every file that names the version, by its path; raises ``Refused`` where one does not name ``old``."""
    texts: dict[str, str] = {}
    for place in PLACES:
        text = texts.get(place.path) or (root / place.path).read_text()
        before = place.text.format(old)
        if before not in text and not place.becomes:
            raise Refused(f"{place.path} does not have {before.strip()!r}: write the present version there")
        texts[place.path] = text.replace(before, (place.becomes or place.text).format(new))
    return texts


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _after(version: str) -> str:
    major, minor, _ = _numbers(version)
    return f"{major}.{minor + 1}.0"
