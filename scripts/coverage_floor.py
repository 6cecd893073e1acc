"""Fails when branch coverage of a package is below its floor.

Usage: ``python scripts/coverage_floor.py`` after a test run with ``--cov``; prints a line per package.
"""

import json
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import coverage

#: Package → least percentage of lines and branches taken within the tests' own processes. Much of the node agent
#: and of inspect runs as processes of their own, whose lines do not count here.
FLOORS = {
    "api": 95.0,
    "ledger": 95.0,
    "reasons": 95.0,
    "kubescheduler": 93.0,
    "simulate": 96.0,
    "scheduler": 95.0,
    "kube": 95.0,
    "nodeagent": 75.0,
    "inspect": 75.0,
    "admission": 95.0,
    "httpserver": 90.0,
    "dashboard": 90.0,
    "uninstall": 90.0,
    "options": 95.0,
    "config": 95.0,
    "doctor": 75.0,
}


def percentages(report: dict[str, dict[str, dict[str, dict[str, int]]]]) -> dict[str, float]:
    """Covered lines and branches in percent, by package."""
    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for name, file in report["files"].items():
        parts = Path(name).parts
        package = parts[parts.index("gpushare") + 1] if "gpushare" in parts else ""
        summary = file["summary"]
        totals[package][0] += summary["covered_lines"] + summary["covered_branches"]
        totals[package][1] += summary["num_statements"] + summary["num_branches"]
    return {package: 100.0 * covered / (all_of or 1) for package, (covered, all_of) in totals.items()}


def main() -> int:
    """Print and compare; returns the exit code."""
    measured = coverage.Coverage()
    measured.load()
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        measured.json_report(outfile=out.name)
        packages = percentages(json.loads(Path(out.name).read_text()))
    low = False
    for package, floor in FLOORS.items():
        percent = packages.get(package, 0.0)
        low |= percent < floor
        print(
            f"coverage of {package + '/':<12} {percent:5.1f}%  (floor {floor:.0f}%){'  TOO LOW' if percent < floor else ''}"
        )
    return int(low)


if __name__ == "__main__":
    sys.exit(main())
