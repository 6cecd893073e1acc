"""Every metric that a page names is on the page about metrics, which is made from the code."""

import re

from documentation.__main__ import DOCS

NAME = re.compile(r"\bgpushare_[a-z]+_[a-z_]*[a-z]\b")
#: What Prometheus adds to the name of a histogram.
PARTS = re.compile(r"_(?:bucket|sum|count)$")
KNOWN = frozenset(
    re.findall(r"^\| `(gpushare_\w+)` \|", (DOCS / "reference" / "metrics.md").read_text(), re.MULTILINE)
)


def test_every_metric_that_a_page_names_exists() -> None:
    named = {
        (name, str(page.relative_to(DOCS)))
        for page in sorted(DOCS.rglob("*.md"))
        for name in NAME.findall(page.read_text())
    }
    assert len(KNOWN) >= 50
    assert (
        sorted((name, page) for name, page in named if name not in KNOWN and PARTS.sub("", name) not in KNOWN)
        == []
    )
