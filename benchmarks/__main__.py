"""Every figure of the product against its budget.

Usage: ``python -m benchmarks [--quick] [PART …]``. Prints the machine and each figure, writes
``build/figures/bench.json`` (``{"figure": {"value": …, "unit": …}}``) and exits 1 when one is over budget, or in a run of all
parts when one that has a budget was not measured.
"""

import argparse
import importlib
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.processes import machine

ROOT = Path(__file__).parent.parent
#: Part → module with ``measure(quick: bool) -> {figure: (value, unit)}``.
PARTS = {
    "ledger": "benchmarks.ledger_events",
    "extender": "benchmarks.extender",
    "in_use": "benchmarks.in_use",
    "claims": "benchmarks.claims",
    "making-room": "benchmarks.making_room",
    "scrape": "benchmarks.scrape",
    "allocate": "benchmarks.allocate",
    "inspect": "benchmarks.inspect_start",
    "playground": "benchmarks.playground_api",
    "dashboard": "benchmarks.dashboard_page",
    "dashboard-round": "benchmarks.dashboard_round",
}


def over_budget(
    figures: Mapping[str, tuple[float, str]], budgets: Mapping[str, Mapping[str, float]]
) -> list[str]:
    """A sentence for every figure that is above its most or below its least."""
    found = []
    for name, budget in budgets.items():
        if name not in figures:
            continue
        value, unit = figures[name]
        if value > budget.get("most", value):
            found.append(f"{name} is {value:.3f} {unit}, more than {budget['most']}")
        if value < budget.get("least", value):
            found.append(f"{name} is {value:.3f} {unit}, less than {budget['least']}")
    return found


def unmeasured(
    figures: Mapping[str, tuple[float, str]], budgets: Mapping[str, Mapping[str, float]]
) -> list[str]:
    """A sentence for every figure that has a budget and was not measured."""
    return [f"{name} was not measured" for name in budgets if name not in figures]


def main() -> int:
    """Measure, print, write, compare; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"some of {', '.join(PARTS)}; all when none is named"
    )
    parser.add_argument("--quick", action="store_true", help="small and fast, for a look: nothing is written")
    options = parser.parse_args()
    if unknown := set(options.parts) - PARTS.keys():
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    chosen = options.parts or list(PARTS)
    print(f"Machine: {machine()}", flush=True)
    budgets = json.loads((ROOT / "benchmarks" / "budgets.json").read_text())
    figures: dict[str, tuple[float, str]] = {}
    for part in chosen:
        started = time.perf_counter()
        print(f"\n{part} …", flush=True)
        found = importlib.import_module(PARTS[part]).measure(quick=options.quick)
        figures |= found
        for name, (value, unit) in found.items():
            budget = budgets.get(name, {})
            bound = " ".join(f"(at {key} {budget[key]})" for key in ("most", "least") if key in budget)
            print(f"  {name:<42} {value:12.3f} {unit:<6} {bound}", flush=True)
        print(f"  took {time.perf_counter() - started:.0f} s", flush=True)
    if not options.quick:
        out = ROOT / "build" / "figures" / "bench.json"
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(
            json.dumps(
                {name: {"value": round(value, 4), "unit": unit} for name, (value, unit) in figures.items()},
                indent=2,
            )
            + "\n"
        )
        print(f"\nWritten: {out.relative_to(ROOT)}")
    problems = [f"OVER BUDGET: {one}" for one in over_budget(figures, budgets)]
    if not options.quick and set(chosen) == PARTS.keys():
        problems += [f"MISSING: {one}" for one in unmeasured(figures, budgets)]
    print("\n".join(["", *problems]) if problems else "\nEvery budget is kept.")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
