"""The changelog: entries under Unreleased become a dated version."""

import re
from datetime import date
from typing import Final

from pipelines.release import Refused

NAME: Final = "CHANGELOG.md"
_HEADING: Final = "## Unreleased\n"


def released(text: str, version: str, day: date) -> str:
    """The changelog with ``version`` in place of Unreleased, and an empty Unreleased above it; raises ``Refused``."""
    if _HEADING not in text:
        raise Refused(f"{NAME} has no heading {_HEADING.strip()!r}: write it, and what changed below it")
    if not re.search(r"^- ", section(text, "Unreleased"), re.MULTILINE):
        raise Refused(f"{NAME} has no entry under Unreleased: write what changed, each as '- …'")
    return text.replace(_HEADING, f"{_HEADING}\n## {version} - {day.isoformat()}\n", 1)


def section(text: str, name: str) -> str:
    """The entries of a version; empty if there are none."""
    found = re.search(rf"^## {re.escape(name)}(?: - \S+)?\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return found[1].strip() + "\n" if found else ""
