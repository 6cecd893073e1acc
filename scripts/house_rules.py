"""Checks that no linter knows: package sizes, meaningless names, hosts of package registries.

Usage: ``python scripts/house_rules.py``; prints each finding and exits 1 when there is one.
"""

import re
import subprocess
import sys
from pathlib import Path

MOST_LINES = 600
EMPTY_NAME = re.compile(r"(^|/)(utils?|helpers?|manager|common|misc)(\.py|\.c|\.h|/)")
# Written in pieces, so that this file does not hold what it looks for.
HOSTS = re.compile(
    "|".join(["pypi" + r"\.org", "pythonhosted" + r"\.org", "registry" + r"\.npmjs", "proxy" + r"\.golang"])
)
# Two megabytes and a sixth of an extender's start (gpushare/kube/client/fast_aiohttp.py).
SLOW_IMPORT = re.compile(r"^\s*(import|from) aiohttp\b", re.MULTILINE)
QUICK_IMPORT = ("src/gpushare/kube/client/fast_aiohttp.py", "src/gpushare_playground/")
SLEEP = re.compile(r"\btime\.sleep\(|asyncio\.sleep\((?!0\))")


def findings(root: Path) -> list[str]:
    """Every rule that a tracked file breaks, as ``file: what``."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True, text=True)
    found = []
    for name in filter(None, listed.stdout.split("\0")):
        path = root / name
        if EMPTY_NAME.search(name):
            found.append(f"{name}: the name says nothing of its subject")
        if not path.is_file() or path.suffix not in {
            ".py",
            ".c",
            ".h",
            ".sh",
            ".toml",
            ".txt",
            ".md",
            ".yaml",
            ".yml",
            ".in",
            "",
        }:
            continue
        text = path.read_text(errors="replace")
        if path.suffix in {".py", ".c", ".h"} and text.count("\n") > MOST_LINES:
            found.append(f"{name}: {text.count(chr(10))} lines, more than {MOST_LINES}; split it by subject")
        if HOSTS.search(text):
            found.append(f"{name}: names the host of a package registry")
        if name.startswith("src/") and not name.startswith(QUICK_IMPORT) and SLOW_IMPORT.search(text):
            found.append(f"{name}: imports aiohttp itself; take it from gpushare.kube.client.fast_aiohttp")
        if name.startswith("tests/") and path.suffix == ".py" and SLEEP.search(text):
            found.append(f"{name}: a test that sleeps; wait for a state instead")
    return found


if __name__ == "__main__":
    problems = findings(Path(__file__).parent.parent)
    print("\n".join(problems) if problems else "house rules: kept")
    sys.exit(bool(problems))
