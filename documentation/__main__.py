"""``python -m documentation``: generates the pages that come from the code, builds the site, checks it."""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from documentation import chart_values, command_line, links, metrics_reference, options_reference, site
from documentation.command_line import HelpFailed
from documentation.navigation import Unlisted
from documentation.site import SiteError

PROJECT: Final = Path(__file__).resolve().parents[1]
DOCS: Final = PROJECT / "docs"

#: Page below ``docs/`` → its generator.
GENERATED: Final[dict[str, Callable[[], str]]] = {
    "reference/command-line.md": lambda: command_line.page(PROJECT),
    "reference/options.md": options_reference.page,
    "reference/metrics.md": lambda: metrics_reference.page(PROJECT / "src" / "gpushare"),
    "reference/chart-values.md": lambda: chart_values.page(PROJECT / "charts"),
}


def main(arguments: list[str] | None = None) -> int:
    """Run the requested actions; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m documentation", description=__doc__)
    parser.add_argument("what", choices=["all", "generate", "build"], nargs="?", default="all")
    parser.add_argument("--out", type=Path, default=PROJECT / "build" / "site", help="folder of the site")
    options = parser.parse_args(arguments)
    started_s = time.monotonic()
    try:
        if options.what != "build":
            generate()
        if options.what != "generate":
            site.build(DOCS, PROJECT / "build" / "docs", options.out, _say)
            if faults := links.broken(options.out):
                print("\n".join(faults), file=sys.stderr)
                _say(f"{len(faults)} faults")
                return 1
            count = len(list(options.out.rglob("*.html")))
            _say(
                f"{count} pages in {options.out}, all links and anchors are valid, nothing is loaded from elsewhere"
            )
    except (SiteError, Unlisted, HelpFailed) as error:
        print(f"documentation: {error}", file=sys.stderr)
        return 1
    _say(f"done in {time.monotonic() - started_s:.1f} s")
    return 0


def generate() -> None:
    """Write the generated pages; pages that are up to date are not touched."""
    for name, write in GENERATED.items():
        text, path = write(), DOCS / name
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            _say(f"{name} rewritten")


def _say(text: str) -> None:
    print(f"docs: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
