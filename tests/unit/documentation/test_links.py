"""The check of a built site."""

from pathlib import Path

import pytest

from documentation.links import broken


def site(folder: Path, body: str, head: str = "") -> list[str]:
    (folder / "sub").mkdir(exist_ok=True)
    (folder / "style.css").write_text("p { background: url(dot.png) }")
    (folder / "sub" / "other.html").write_text('<h2 id="here">x</h2>')
    (folder / "index.html").write_text(f"<html><head>{head}</head>\n<body>{body}</body></html>")
    return broken(folder)


@pytest.mark.parametrize(
    "body",
    [
        '<a href="sub/other.html">x</a>',
        '<a href="sub/other.html#here">x</a>',
        '<a href="/sub/other.html#here">x</a>',
        '<a href="#top" id="top">x</a>',
        '<a href="https://example.com/x">x</a>',
        '<a href="mailto:a@example.com">x</a>',
        '<img src="style.css">',
        '<img src="data:image/png;base64,AAAA">',
        '<a name="old" href="#old">x</a>',
    ],
)
def test_a_good_site_has_no_fault(tmp_path: Path, body: str) -> None:
    assert site(tmp_path, body, '<link rel="canonical" href="https://example.com">') == []


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ('<a href="gone.html">x</a>', "index.html:2: leads to gone.html, which is not there"),
        ('<a href="sub/">x</a>', "index.html:2: leads to sub/, which is not there"),
        (
            '<a href="sub/other.html#gone">x</a>',
            "index.html:2: leads to sub/other.html#gone: that page has no anchor gone",
        ),
        ('<a href="#gone">x</a>', "index.html:2: leads to #gone: that page has no anchor gone"),
        ('<img src="gone.png">', "index.html:2: loads gone.png, which is not there (gone.png)"),
        (
            '<script src="https://cdn.example/x.js"></script>',
            "index.html:2: loads https://cdn.example/x.js from another host",
        ),
        (
            '<img srcset="style.css 1x, //cdn.example/x.png 2x">',
            "index.html:2: loads //cdn.example/x.png from another host",
        ),
        (
            '<p style="background: url(https://cdn.example/x)">',
            "index.html:2: loads https://cdn.example/x from another host",
        ),
        (
            '<style>@import "https://cdn.example/x.css";</style>',
            "index.html:2: loads https://cdn.example/x.css from another host",
        ),
    ],
)
def test_a_fault_is_reported_with_its_location(tmp_path: Path, body: str, fault: str) -> None:
    assert site(tmp_path, body) == [fault]


@pytest.mark.parametrize("kind", ["stylesheet", "preconnect", "preload", "icon"])
def test_nothing_is_loaded_or_reached_from_another_host(tmp_path: Path, kind: str) -> None:
    head = f'<link rel="{kind}" href="https://fonts.example/x">'
    assert site(tmp_path, "", head) == ["index.html:1: loads https://fonts.example/x from another host"]


def test_a_style_sheet_that_loads_from_another_host_is_reported(tmp_path: Path) -> None:
    (tmp_path / "bad.css").write_text("@font-face { src: url('https://fonts.example/x.woff2') }")
    assert site(tmp_path, "") == ["bad.css: loads https://fonts.example/x.woff2 from another host"]


def test_a_site_without_pages_is_reported(tmp_path: Path) -> None:
    assert broken(tmp_path) == [f"{tmp_path}: no page was built"]
