"""The accuracy and cost of isolation, on the fake driver.

Usage: ``python -m benchmarks.isolation [--quick] [--hami FOLDER | --peer NAME:VARIABLE=VALUE…] [PART …]``. Prints every row with its
guarantee, writes ``build/figures/isolation.json`` (parts that were not measured stay in it) and exits 1 if a guarantee was missed, or
if a peer was ahead in a row. A quick run writes nothing, and exits 1 only if a row has no figures. A part is a module with ``measure(peer, *, quick) -> Iterator[Row]``.
"""

import argparse
import importlib
import os
import sys
import time
from pathlib import Path

from benchmarks.isolation.bed import ROOT, build
from benchmarks.isolation.lateness import Lateness
from benchmarks.isolation.peer import PLACEHOLDERS, Peer
from benchmarks.isolation.table import Part, Row, markdown, read, store
from benchmarks.processes import machine

PARTS = {name: f"benchmarks.isolation.{name}" for name in ("memory", "cost", "compute", "latency")}
FIGURES = ROOT / "build" / "figures" / "isolation.json"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.isolation", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"any of {', '.join(PARTS)} (default: all)")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="fewer rows and shorter, to see that it runs: nothing is written, and only a row without figures fails",
    )
    peers = parser.add_mutually_exclusive_group()
    peers.add_argument(
        "--hami", type=Path, metavar="FOLDER", help="folder of HAMi-core's libvgpu.so, for comparison"
    )
    peers.add_argument(
        "--peer",
        metavar="NAME:VARIABLE=VALUE…",
        help="another isolation library, by the environment that loads it; values may hold "
        + ", ".join(f"{{{name}}}" for name in PLACEHOLDERS),
    )
    parser.add_argument(
        "--markdown", action="store_true", help="measure nothing: print the last results as tables"
    )
    options = parser.parse_args()
    if unknown := set(options.parts) - PARTS.keys():
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    try:
        if options.hami:
            options.peer = Peer.hami_core(options.hami)
        elif options.peer:
            options.peer = Peer.parse(options.peer)
    except ValueError as error:
        parser.error(str(error))
    return options


def measured(name: str, peer: Peer | None, *, quick: bool) -> Part:
    """Measure one part; rows are printed immediately."""
    rows: list[Row] = []
    started, load = time.perf_counter(), os.getloadavg()[0]
    print(f"\n{name} …", flush=True)
    with Lateness() as lateness:
        for row in importlib.import_module(PARTS[name]).measure(peer, quick=quick):
            rows.append(row)
            print(row.line(), flush=True)
    where = (
        f"{machine()}; load {load:.1f} at the beginning, {os.getloadavg()[0]:.1f} at the end, {lateness.summary()}; "
        f"took {time.perf_counter() - started:.0f} s"
    )
    print(f"  {where}", flush=True)
    return Part(where, peer.name if peer else None, rows)


def main() -> int:
    """Measure, print, write; returns the exit code."""
    options = arguments()
    if options.markdown:
        print(markdown(read(FIGURES) if FIGURES.exists() else {}))
        return 0
    build()
    print(
        f"Machine: {machine()}; GPU: the fake driver; compared with: {options.peer.name if options.peer else 'nothing'}"
    )
    parts = {
        name: measured(name, options.peer, quick=options.quick)
        for name in PARTS
        if name in options.parts or not options.parts
    }
    if not options.quick:
        store(FIGURES, parts)
        print(f"\nWritten: {FIGURES.relative_to(ROOT)}")
    rows = [row for part in parts.values() for row in part.rows]
    if options.quick:
        bad = [f"{row.name}: no figures, {row.got}" for row in rows if isinstance(row.got, str)]
        print(f"\n{len(rows)} rows, {len(bad)} without figures" + "".join(f"\n  {line}" for line in bad))
        return int(bool(bad))
    bad = [f"{row.name}: missed" for row in rows if row.good is False]
    bad += [f"{row.name}: the peer is ahead" for row in rows if row.standing == "behind"]
    print(f"\n{len(rows)} rows, {len(bad)} not as promised" + "".join(f"\n  {line}" for line in bad))
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
