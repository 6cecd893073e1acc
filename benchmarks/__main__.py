"""Measure the product's figures and compare them with their budgets.

Usage: ``python -m benchmarks [--quick] [PART …]``. Prints the machine and each figure, writes
``build/figures/bench.json`` (``{"figure": {"value": …, "unit": …, "most": …}}``) and exits 1 if one is over budget, or in a
run of all parts if one with a budget was not measured. Budgets of times hold on the machine of ``benchmarks.reference``;
slower machines may take as much longer as they take for the reference. A quick run writes nothing and checks no budgets.
"""

import argparse
import importlib
import json
import sys
import time
from pathlib import Path

from benchmarks.budgets import Figures, on_this_machine, verdict
from benchmarks.processes import machine
from benchmarks.reference import reference_ms, slowness

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
    "dashboard": "benchmarks.dashboard_page",
    "dashboard-round": "benchmarks.dashboard_round",
}


def main() -> int:
    """Measure, print, write, compare; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"any of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="small and fast: nothing is written")
    options = parser.parse_args()
    if unknown := set(options.parts) - PARTS.keys():
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    chosen = options.parts or list(PARTS)
    print(f"Machine: {machine()}", flush=True)
    budgets = json.loads((ROOT / "benchmarks" / "budgets.json").read_text())
    figures: Figures = {}
    reference = reference_ms()
    for part in chosen:
        started = time.perf_counter()
        print(f"\n{part} …", flush=True)
        found = importlib.import_module(PARTS[part]).measure(quick=options.quick)
        figures |= found
        before, reference = reference, reference_ms()
        slower = slowness(before, reference)
        budgets |= on_this_machine({name: budgets[name] for name in found if name in budgets}, slower)
        for name, (value, unit) in found.items():
            budget = budgets.get(name, {})
            bound = " ".join(f"(at {key} {budget[key]})" for key in ("most", "least") if key in budget)
            print(f"  {name:<42} {value:12.3f} {unit:<6} {bound}", flush=True)
        print(
            f"  took {time.perf_counter() - started:.0f} s, the reference {reference:.0f} ms: budgets of times are multiplied by {slower:.2f}",
            flush=True,
        )
    if not options.quick:
        out = ROOT / "build" / "figures" / "bench.json"
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(
            json.dumps(
                {
                    name: {**budgets.get(name, {}), "value": round(value, 4), "unit": unit}
                    for name, (value, unit) in figures.items()
                },
                indent=2,
            )
            + "\n"
        )
        print(f"\nWritten: {out.relative_to(ROOT)}")
    print()
    return verdict(figures, budgets, quick=options.quick, everything=set(chosen) == PARTS.keys())


if __name__ == "__main__":
    sys.exit(main())
