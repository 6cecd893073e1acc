"""Metric names follow Prometheus' conventions, and pages use only names in the reference, which is generated from the code."""

import re
from collections import Counter
from typing import Final

import pytest

from documentation.__main__ import DOCS

NAME = re.compile(r"\bgpushare_[a-z]+_[a-z_]*[a-z]\b")
#: What Prometheus adds to the name of a histogram.
PARTS = re.compile(r"_(?:bucket|sum|count)$")
#: Name → type.
KINDS = dict(
    re.findall(
        r"^\| `(gpushare_\w+)` \| (\w+) \|", (DOCS / "reference" / "metrics.md").read_text(), re.MULTILINE
    )
)
KNOWN = frozenset(KINDS)
UNITS: Final = ("bytes", "seconds", "ratio", "celsius", "watts", "joules", "hertz")
OTHER_UNITS: Final = re.compile(
    r"_(?:(?:[kmg]i?|kilo|mega|giga|mebi|gibi|kibi)_?bytes|mib|gib|percent|core|milli\w+|ms|minutes|mhz)(?:_|$)"
)
#: States (1 or 0), or facts in labels: without a unit.
STATES: Final = frozenset(
    (
        "container_runtime",
        "degraded",
        "healthy",
        "info",
        "is_leader",
        "isolation",
        "isolation_selftest",
        "last_xid",
        "ready",
        "watch_failing",
    )
)

#: The page that may use former names of metrics.
UPGRADE = DOCS / "operation" / "operate.md"
RENAMED = [
    (NAME.findall(before), NAME.findall(now))
    for before, now in re.findall(
        r"^\|([^|]*)\|([^|]*)\|$",
        (DOCS.parent / "CHANGELOG.md").read_text().partition("### Renamed")[2].partition("\n### ")[0],
        re.MULTILINE,
    )
    if NAME.search(before) and NAME.search(now)
]


@pytest.mark.parametrize("name", sorted(KINDS))
def test_a_metric_has_a_base_unit_or_counts_things_and_total_is_for_counters(name: str) -> None:
    assert re.fullmatch(r"gpushare(?:_[a-z]+)+", name)
    assert (KINDS[name] == "counter") == name.endswith("_total")
    base = name.removesuffix("_total")
    assert "_total" not in base
    assert not OTHER_UNITS.search(base)
    words = base.split("_")
    state = any(base.endswith(f"_{one}") for one in STATES)
    assert words[-1] in UNITS or words[-1].endswith("s") or KINDS[name] == "counter" or state
    assert not {"given", "foreign", "waiting", "trouble", "malformed", "leading"} & set(words)


def test_no_figure_has_two_units() -> None:
    unit = re.compile(rf"_(?:{'|'.join(UNITS)})$")
    figures = Counter(unit.sub("", name.removesuffix("_total")) for name in KINDS)
    assert [name for name, count in figures.items() if count > 1] == []


def test_a_renamed_metric_exists_under_its_new_name_only() -> None:
    assert len(RENAMED) > 30
    for before, now in RENAMED:
        assert not KNOWN & set(before)
        assert set(now) <= KNOWN


def test_every_metric_that_a_page_names_exists() -> None:
    old = {name for before, _ in RENAMED for name in before}
    named = {
        (name, str(page.relative_to(DOCS)))
        for page in sorted(DOCS.rglob("*.md"))
        for name in NAME.findall(page.read_text())
        if page != UPGRADE or name not in old
    }
    assert len(KNOWN) >= 50
    assert (
        sorted((name, page) for name, page in named if name not in KNOWN and PARTS.sub("", name) not in KNOWN)
        == []
    )
