"""Every metric that a page names is on the page about metrics, which is made from the code."""

import re

from documentation.__main__ import DOCS

NAME = re.compile(r"\bgpushare_[a-z]+_[a-z_]*[a-z]\b")
#: What Prometheus adds to the name of a histogram.
PARTS = re.compile(r"_(?:bucket|sum|count)$")
KNOWN = frozenset(
    re.findall(r"^\| `(gpushare_\w+)` \|", (DOCS / "reference" / "metrics.md").read_text(), re.MULTILINE)
)

#: The page that says what a release calls otherwise, and nothing else may name: before, now.
UPGRADE = DOCS / "operation" / "operate.md"
RENAMED = [
    (NAME.findall(before), NAME.findall(now))
    for before, now in re.findall(
        r"^\|[^|]*\|([^|]*)\|([^|]*)\|$",
        UPGRADE.read_text().partition("### What is called otherwise")[2].partition("\n### ")[0],
        re.MULTILINE,
    )
    if NAME.search(before)
]


def test_of_a_metric_that_was_renamed_the_old_name_is_gone_and_the_new_one_is_there() -> None:
    assert RENAMED
    for before, now in RENAMED:
        assert not KNOWN & set(before)
        assert now
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
