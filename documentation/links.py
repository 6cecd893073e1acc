"""Checks a built site: every internal link leads to an existing page and anchor, and no page loads anything from elsewhere."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

#: Attributes by which a browser loads something for a page. An ``a`` loads nothing.
_LOADS: Final = {
    "script": ("src",),
    "img": ("src", "srcset"),
    "iframe": ("src",),
    "source": ("src", "srcset"),
    "video": ("src", "poster"),
    "audio": ("src",),
    "object": ("data",),
    "embed": ("src",),
    "link": ("href",),
    "use": ("href", "xlink:href"),
    "form": ("action",),
}
#: Kinds of ``link`` that only describe a page, and load nothing.
_TOLD: Final = frozenset({"canonical", "alternate", "next", "prev", "author", "license"})
_STYLE_LOADS: Final = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")


@dataclass
class _Page(HTMLParser):
    """What a page links to and loads, each with its line, and its anchors."""

    links: list[tuple[int, str]] = field(default_factory=list)
    loads: list[tuple[int, str]] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)
    _style: bool = False

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record a tag."""
        said = {name: value or "" for name, value in attrs}
        line = self.getpos()[0]
        self.anchors |= {said[name] for name in ("id", "name") if said.get(name)}
        if tag == "a" and "href" in said:
            self.links.append((line, said["href"]))
        if tag == "link" and set(said.get("rel", "").split()) & _TOLD:
            return
        for name in _LOADS.get(tag, ()):
            if said.get(name):
                several = said[name].split(",") if name == "srcset" else [said[name]]
                self.loads += [(line, one.split()[0]) for one in several if one.strip()]
        self.loads += [(line, one) for one in _in_style(said.get("style", ""))]
        self._style = tag == "style"

    def handle_endtag(self, tag: str) -> None:
        """The end of a style."""
        self._style &= tag != "style"

    def handle_data(self, data: str) -> None:
        """The text of a style."""
        if self._style:
            self.loads += [(self.getpos()[0], one) for one in _in_style(data)]


def _in_style(text: str) -> list[str]:
    return [first or second for first, second in _STYLE_LOADS.findall(text)]


def broken(site: Path) -> list[str]:
    """Each fault as ``PAGE:LINE: what``; none in a good site."""
    site = site.resolve()
    read = {path: _read(path) for path in sorted(site.rglob("*.html"))}
    if not read:
        return [f"{site}: no page was built"]
    found = []
    for path, page in read.items():
        where = path.relative_to(site)
        found += [f"{where}:{line}: {what}" for line, what in _faults(site, path, page, read)]
    for path in sorted(site.rglob("*.css")):
        where = path.relative_to(site)
        found += [
            f"{where}: loads {one} from another host"
            for one in _in_style(path.read_text(errors="replace"))
            if _is_elsewhere(one)
        ]
    return found


def _read(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text())
    page.close()
    return page


def _faults(site: Path, path: Path, page: _Page, read: dict[Path, _Page]) -> Iterator[tuple[int, str]]:
    for line, loaded in page.loads:
        if _is_elsewhere(loaded):
            yield line, f"loads {loaded} from another host"
        elif not loaded.startswith(("data:", "#")) and not (target := _target(site, path, loaded)).exists():
            yield line, f"loads {loaded}, which is not there ({target.name})"
    for line, link in page.links:
        if urlsplit(link).scheme or link.startswith("//"):
            continue
        target = _target(site, path, link)
        anchor = unquote(urlsplit(link).fragment)
        if not target.is_file():
            yield line, f"leads to {link}, which is not there"
        elif anchor and target in read and anchor not in read[target].anchors:
            yield line, f"leads to {link}: that page has no anchor {anchor}"


def _is_elsewhere(link: str) -> bool:
    return link.startswith("//") or urlsplit(link).scheme in ("http", "https", "ws", "wss")


def _target(site: Path, path: Path, link: str) -> Path:
    """The file that a link refers to, as resolved by a browser at ``path``."""
    named = unquote(urlsplit(link).path)
    base = site if named.startswith("/") else path.parent
    target = (base / named.lstrip("/")).resolve() if named else path
    return target / "index.html" if target.is_dir() else target
