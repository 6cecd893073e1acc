"""Builds ``docs/`` into a folder of HTML: stages the pages, writes zensical's settings, runs it, checks what it wrote."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from documentation.blocks import MARKS
from documentation.navigation import SECTIONS, pages

#: Marks for the test of the commands; the site does not show them.
_MARKS: Final = re.compile(rf"^[ \t]*<!--\s*(?:{'|'.join(MARKS)}):.*?-->\s*\n", re.MULTILINE)
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_THEME: Final = Path(__file__).with_name("theme")
_BUILD_S: Final = 300.0


class SiteError(Exception):
    """The site could not be built; the text says why."""


def build(docs: Path, work: Path, site: Path, say: Callable[[str], None]) -> None:
    """Build the site into ``site`` (recreated), using ``work``; raises ``SiteError`` and ``Unlisted``."""
    sections = pages(docs)
    shutil.rmtree(work, ignore_errors=True)
    count = stage(docs, work / "docs")
    for title, listed in sections:
        if folder := next((one.rest[0] for one in SECTIONS if one.title == title and not one.pages), ""):
            (work / "docs" / folder / "index.md").write_text(contents(title, listed))
    shutil.copytree(_THEME, work / "theme", ignore=shutil.ignore_patterns("settings.toml"))
    (work / "zensical.toml").write_text(settings(sections))
    say(f"{count} pages in {len(sections)} sections; zensical builds them …")
    command = [
        sys.executable,
        "-m",
        "zensical",
        "build",
        "--strict",
        "--clean",
        "--config-file",
        "zensical.toml",
    ]
    try:
        ran = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=_BUILD_S, check=False)
    except subprocess.TimeoutExpired:
        raise SiteError(f"zensical did not finish within {_BUILD_S:.0f} s") from None
    if ran.returncode:
        said = _COLOUR.sub("", ran.stdout + ran.stderr).partition("Traceback")[0]
        raise SiteError(f"zensical ended with {ran.returncode}:\n{said}")
    shutil.rmtree(site, ignore_errors=True)
    site.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(work / "site", site)


def stage(docs: Path, staged: Path) -> int:
    """Copy ``docs`` without the marks of the commands' test; how many pages there are."""
    shutil.copytree(docs, staged)
    found = list(staged.rglob("*.md"))
    for page in found:
        page.write_text(_MARKS.sub("", page.read_text()))
    return len(found)


def contents(title: str, listed: list[tuple[str, str]]) -> str:
    """A page that lists a folder's pages: the target of links to the folder."""
    return f"# {title}\n\n" + "".join(f"* [{name}]({Path(path).name})\n" for name, path in listed)


def settings(sections: list[tuple[str, list[tuple[str, str]]]]) -> str:
    """zensical's settings as TOML. Strings are written as in JSON, which is valid TOML."""
    lines = [
        "[project]",
        'site_name = "gpushare"',
        'site_description = "Shared GPU scheduling for any Kubernetes cluster"',
        'copyright = "Apache-2.0"',
        "use_directory_urls = false",
        'extra_css = ["assets/stylesheets/commands.css"]',
        "nav = [",
    ]
    for title, listed in sections:
        inner = ", ".join(
            f"{{{json.dumps(name, ensure_ascii=False)} = {json.dumps(path)}}}" for name, path in listed
        )
        lines.append(f"  {{{json.dumps(title)} = [{inner}]}},")
    return "\n".join(lines) + "]\n" + (_THEME / "settings.toml").read_text()
