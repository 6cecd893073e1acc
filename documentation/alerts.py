"""The alerts of the charts, and the page that explains each of them."""

import re
from pathlib import Path
from typing import Any, Final

import yaml

PAGE: Final = "troubleshooting/alerts.md"
#: Parts of every alert's section, in this order.
PARTS: Final = ("Meaning", "Impact", "Look at", "Do")
_HEADING: Final = re.compile(r"^## (\S+)$", re.MULTILINE)
_PART: Final = re.compile(r"^\*\*(.+?)\.\*\* \S", re.MULTILINE)


def of_charts(charts: Path) -> dict[str, str]:
    """Every alert → its severity."""
    rules: list[dict[str, Any]] = [
        rule
        for file in sorted(charts.glob("*/files/alerts.yaml"))
        for group in yaml.safe_load(file.read_text())["groups"]
        for rule in group["rules"]
    ]
    return {rule["alert"]: rule["labels"]["severity"] for rule in rules if "alert" in rule}


def sections(page: str) -> dict[str, str]:
    """Every alert on the page → its section."""
    _, *parts = _HEADING.split(page)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def parts(section: str) -> tuple[str, ...]:
    """The parts of an alert's section, in order."""
    return tuple(_PART.findall(section))
