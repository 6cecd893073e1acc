"""The pages' order in the navigation, which has all of them."""

from pathlib import Path

import pytest

from documentation import navigation
from documentation.navigation import SECTIONS, Section, Unlisted, heading, in_order, pages

DOCS = Path(__file__).parents[3] / "docs"


def test_every_page_of_the_documentation_has_one_place() -> None:
    listed = list(in_order(DOCS))
    assert sorted(listed) == sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))


def test_the_order_is_that_of_a_beginner() -> None:
    titles = [section.title for section in SECTIONS]
    assert (
        titles.index("Tutorial")
        < titles.index("How to")
        < titles.index("Reference")
        < titles.index("Decisions")
    )
    assert titles.index("Troubleshooting") == titles.index("How to") + 1


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("index.md", "guide/b.md", "guide/a.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"# The `{Path(name).stem}` page\n")
    sections = (
        Section("Start", (("Home", "index.md"), ("", "guide/b.md"))),
        Section("More", rest=("guide",)),
    )
    monkeypatch.setattr(navigation, "SECTIONS", sections)
    return tmp_path


def test_pages_of_a_folder_that_is_taken_whole_need_not_be_named(docs: Path) -> None:
    (docs / "guide" / "new.md").write_text("# New\n")
    assert pages(docs) == [
        ("Start", [("Home", "index.md"), ("The b page", "guide/b.md")]),
        ("More", [("The a page", "guide/a.md"), ("New", "guide/new.md")]),
    ]


def test_a_page_without_a_place_is_reported(docs: Path) -> None:
    (docs / "lost.md").write_text("# Lost\n")
    with pytest.raises(Unlisted, match=r"without a place in the navigation: lost\.md; name them in"):
        pages(docs)


def test_a_place_without_a_page_is_reported(docs: Path) -> None:
    (docs / "index.md").unlink()
    with pytest.raises(Unlisted, match=r"names missing pages: index\.md"):
        pages(docs)


def test_a_page_without_a_heading_is_named_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "x.md").write_text("text\n")
    assert heading(tmp_path / "x.md") == "x"
