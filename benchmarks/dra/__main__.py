"""The cost of shares through ResourceClaims: on a real control plane, and in the node agent.

Usage: ``python -m benchmarks.dra [--quick] [--binaries DIR] [PART …]``. DIR holds etcd, kube-apiserver, kube-controller-manager,
kube-scheduler and kwok; missing ones are built from the modules of ``tests/e2e/cluster`` and kept. ``claims``: 500 a minute over 200 nodes,
then as many as the control plane can handle. ``slices``: writes of 1,000 nodes at their start and while idle. ``agent``: 8 GPUs with 64 claims each.
Writes ``build/figures/dra.json``, and exits 1 if a figure is over its budget, or in a run of all parts if one was not measured.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Final

from benchmarks.__main__ import ROOT
from benchmarks.budgets import Figures, on_this_machine, verdict
from benchmarks.dra import agent, control_plane
from benchmarks.processes import machine
from benchmarks.reference import reference_ms, slowness
from tests.e2e.cluster.binaries import CannotBuild, build

BINARIES: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok")
PARTS: Final = ("claims", "slices", "agent")
_OUT: Final = ROOT / "build" / "figures" / "dra.json"
_BUDGETS: Final = Path(__file__).with_name("budgets.json")


async def _measure(part: str, binaries: Path, quick: bool) -> Figures:
    if part == "claims":
        sizes = (5, 500, 20, 20) if quick else (200, 500, 500, 500)
        return await control_plane.claims(binaries, *sizes)
    if part == "slices":
        return await control_plane.slices(binaries, *((20, 2.0) if quick else (1000, 60.0)))
    return await agent.measure(*((2, 1.0) if quick else (64, 40.0)))


def main() -> int:
    """Measure, print, write, compare; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.dra",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"some of {', '.join(PARTS)}; all when none is named"
    )
    parser.add_argument("--quick", action="store_true", help="small and fast, for a look: nothing is written")
    parser.add_argument(
        "--binaries", type=Path, help=f"folder of {', '.join(BINARIES)}; what it lacks is built"
    )
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    # As with Ctrl-C: started processes are ended.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        binaries = build(names=BINARIES, ready=options.binaries, report=lambda line: print(line, flush=True))
    except CannotBuild as error:
        print(f"bench-dra: {error}", file=sys.stderr)
        return 2
    load = os.getloadavg()[0]
    print(f"Machine: {machine()}; load {load:.1f}", flush=True)
    chosen = options.parts or PARTS
    figures: Figures = {}
    before = reference_ms()
    for part in chosen:
        print(f"\n{part} …", flush=True)
        found = asyncio.run(_measure(part, binaries, options.quick))
        figures |= found
        for name, (value, unit) in found.items():
            print(f"  {name:<44}{value:12.3f} {unit}", flush=True)
    slower = slowness(before, reference_ms())
    print(f"\nBudgets of times are multiplied by {slower:.2f}, as this machine's reference.")
    budgets = on_this_machine(json.loads(_BUDGETS.read_text()), slower)
    if not options.quick:
        written = {
            name: {**budgets.get(name, {}), "value": round(value, 4), "unit": unit}
            for name, (value, unit) in figures.items()
        }
        _OUT.parent.mkdir(parents=True, exist_ok=True)
        _OUT.write_text(json.dumps({"machine": machine(), "load": load, "figures": written}, indent=2) + "\n")
        print(f"\nWritten: {_OUT.relative_to(ROOT)}")
    print()
    return verdict(figures, budgets, quick=options.quick, everything=set(chosen) == set(PARTS))


if __name__ == "__main__":
    sys.exit(main())
