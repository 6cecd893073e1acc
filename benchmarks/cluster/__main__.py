"""Pods per second of a real kube-scheduler on thousands of nodes, with our extender and without.

Usage: ``python -m benchmarks.cluster [--quick] [--nodes 1000,5000] [--share 0,100] [--binaries DIR]``. DIR
contains etcd, kube-apiserver, kube-scheduler, kwok and helm; missing ones are built from the modules of
``tests/e2e/cluster`` and kept. The scheduler's chart is installed, for its permissions and its configuration. Three variants
run in turn on one cluster, several times each: kube-scheduler alone (the ceiling), with an extender that does nothing
(the cost of the protocol), and with ours. Writes ``build/figures/cluster.json``, and exits 1 if a ratio is under its
budget, or in a complete run if one with a budget was not measured.
"""

import argparse
import asyncio
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from benchmarks.__main__ import ROOT
from benchmarks.budgets import Figures, verdict
from benchmarks.cluster import storm
from benchmarks.cluster.bed import Bed, cluster
from benchmarks.cluster.measuring import Load, Run, pods, run
from benchmarks.cluster.processes import fresh_folder
from benchmarks.cluster.profiling import connections, extender_top, go_profiles, top
from benchmarks.cluster.report import figures_of, named, table
from benchmarks.cluster.variants import ALONE, NULL, OURS, UNBOUND, scheduler
from benchmarks.processes import machine
from tests.e2e.cluster.binaries import CannotBuild, build

BINARIES: Final = ("etcd", "kube-apiserver", "kube-scheduler", "kwok", "helm")
#: Numbers of nodes, and percents of them to score.
USUAL: Final = ([1000, 5000], [0, 100])
_QUICK: Final = ([20], [100])
_OUT: Final = ROOT / "build" / "figures" / "cluster.json"
_STORM_NODES, _QUICK_STORM_NODES = 100, 10
_PROFILES: Final = ROOT / "build" / "bench"
_BUDGETS: Final = Path(__file__).with_name("budgets.json")
_NULL_EXTENDER: Final = Path(__file__).with_name("null_extender")


def load_of(nodes: int, share: int, quick: bool) -> Load:
    """The number of pods for a run of about twenty seconds: fewer if more nodes are scored for each."""
    scored = nodes * share / 100 if share else max(nodes * max(50 - nodes // 125, 5) / 100, 100)
    many = int(min(2000, max(300, 800_000 / scored)))
    return Load(many // 5, 10, 5, 10.0) if quick else Load(many, 100, 150, 10.0)


async def measure(
    binaries: Path, nodes: int, shares: list[int], variants: list[str], repeats: int, quick: bool, null: Path
) -> dict[int, dict[str, list[Run]]]:
    """Runs by share of nodes scored, and variant; the variants take turns."""
    found: dict[int, dict[str, list[Run]]] = {}
    async with cluster(binaries, nodes) as bed:
        for share in shares:
            runs = found[share] = {variant: [] for variant in variants}
            load = load_of(nodes, share, quick)
            for turn in range(repeats):
                for variant in variants if turn % 2 == 0 else reversed(variants):
                    one = await _run(bed, binaries, variant, share, load, null)
                    runs[variant].append(one)
                    print(f"    {named(share)}, turn {turn + 1}, {variant}: {one}", flush=True)
    return found


async def _storm(binaries: Path, quick: bool, null: Path) -> Figures:
    plan = storm.Storm(waiting=40, ends=2, quiet_s=1.0, between_s=0.5) if quick else storm.Storm()
    async with cluster(binaries, _QUICK_STORM_NODES if quick else _STORM_NODES) as bed:
        return await storm.measure(bed, binaries, null, plan)


async def profile(
    binaries: Path, nodes: int, share: int, variant: str, quick: bool, null: Path, extender: bool = False
) -> str:
    """Another run with profilers, which slow it down, so its rate is not a figure. ``extender``: with Python's profiler, the slowest."""
    folder = (
        _PROFILES / f"profile-{nodes}-{share}-{variant.replace(' ', '-')}{'-extender' if extender else ''}"
    )
    folder.mkdir(parents=True, exist_ok=True)
    stats = folder / "extender.pstats" if extender else None
    load = load_of(nodes, share, quick)
    async with cluster(binaries, nodes) as bed, bed.api.bound() as bound:
        await bed.api.create_pods(pods("backlog", load.backlog))
        state = fresh_folder(bed.folder, "profile")
        async with scheduler(variant, bed, binaries, state, share, null, profile=stats) as started:
            profiles = await go_profiles(started, bed.api, bound, load.backlog // 10, folder)
            held = connections(int(started.extender_url.rpartition(":")[2])) if started.extender_url else {}
            await bound.reaches(load.backlog, started.programs)
    texts = [f"connections to the extender: {held}"]
    texts += [extender_top(stats)] if stats else [f"{name}\n{top(file)}" for name, file in profiles.items()]
    text = "\n\n".join(texts)
    (folder / "profile.txt").write_text(text)
    return text


async def _run(bed: Bed, binaries: Path, variant: str, share: int, load: Load, null: Path) -> Run:
    state = fresh_folder(bed.folder, variant)
    async with bed.api.bound() as bound:
        await bed.api.create_pods(pods("backlog", load.backlog))
        async with scheduler(variant, bed, binaries, state, share, null) as started:
            found = await run(bed, started, bound, load)
    await bed.api.delete_pods(bed.programs)
    return found


def _null_extender() -> Path:
    made = ROOT / "build" / "bench" / "null-extender"
    made.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false", "GOTOOLCHAIN": "local"}
    command = ["go", "build", "-trimpath", "-ldflags=-s -w", "-o", str(made), "."]
    subprocess.run(command, cwd=_NULL_EXTENDER, env=environment, check=True)
    return made


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cluster",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    numbers = lambda text: [int(one) for one in text.split(",")]  # noqa: E731
    parser.add_argument("--nodes", type=numbers, help="default 1000,5000, quick 20; 0: none")
    parser.add_argument(
        "--share",
        type=numbers,
        help="percent of nodes to score, default 0,100, quick 100; 0: kube-scheduler's choice",
    )
    parser.add_argument("--repeats", type=int, default=5, help="turns of each variant (default %(default)s)")
    parser.add_argument(
        "--binaries", type=Path, help=f"folder of {', '.join(BINARIES)}; missing ones are built"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a few nodes and pods for some seconds, to see that it runs: nothing is written or compared",
    )
    parser.add_argument(
        "--without-bind", action="store_true", help="a fourth variant: does nothing, and kube-scheduler binds"
    )
    parser.add_argument("--without-storm", action="store_true", help="skip the pods that fit nowhere")
    parser.add_argument(
        "--profile",
        action="store_true",
        help="only profiled runs of an extender that does nothing and of ours, per number of nodes and share; in build/bench/",
    )
    options = parser.parse_args()
    usual = _QUICK if options.quick else USUAL
    options.nodes, options.share = options.nodes or usual[0], options.share or usual[1]
    options.everything = (options.nodes, options.share, options.without_storm) == (*usual, False)
    if shutil.which("go") is None:
        parser.error("go is not on the PATH: the extender that does nothing is built with it")
    return options


def main() -> int:
    """Measure, print, write, compare; returns the exit code."""
    options = _options()
    # As with Ctrl-C: started processes are ended.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    repeats = 1 if options.quick else options.repeats
    variants = [ALONE, NULL, *([UNBOUND] if options.without_bind else []), OURS]
    try:
        options.binaries = build(
            names=BINARIES, ready=options.binaries, report=lambda line: print(line, flush=True)
        )
    except CannotBuild as error:
        print(f"bench-cluster: {error}", file=sys.stderr)
        return 2
    null = _null_extender()
    print(f"Machine: {machine()}; load {os.getloadavg()[0]:.1f}", flush=True)
    if options.profile:
        for nodes, share in itertools.product(options.nodes, options.share):
            for variant, extender in ((NULL, False), (OURS, False), (OURS, True)):
                print(f"\n{variant}, {nodes} nodes, {named(share)}", flush=True)
                print(
                    asyncio.run(
                        profile(options.binaries, nodes, share, variant, options.quick, null, extender)
                    )
                )
        return 0
    written: dict[str, object] = {"machine": machine(), "load": os.getloadavg()[0], "repeats": repeats}
    figures: Figures = {}
    for nodes in filter(None, options.nodes):
        print(f"\n{nodes} nodes …", flush=True)
        measured = asyncio.run(
            measure(options.binaries, nodes, options.share, variants, repeats, options.quick, null)
        )
        for share, runs in measured.items():
            found = figures_of(nodes, share, runs)
            figures |= found
            print(table(nodes, share, runs), flush=True)
    if not options.without_storm:
        print("\nPods that fit nowhere …", flush=True)
        found = asyncio.run(_storm(options.binaries, options.quick, null))
        figures |= found
        for name, (value, unit) in found.items():
            print(f"  {name:<44}{value:12.3f} {unit}", flush=True)
    written["figures"] = {
        name: {"value": round(value, 4), "unit": unit} for name, (value, unit) in figures.items()
    }
    if not options.quick:
        _OUT.parent.mkdir(parents=True, exist_ok=True)
        _OUT.write_text(json.dumps(written, indent=2) + "\n")
        print(f"\nWritten: {_OUT.relative_to(ROOT)}")
    budgets = json.loads(_BUDGETS.read_text())
    print()
    return verdict(figures, budgets, quick=options.quick, everything=options.everything)


if __name__ == "__main__":
    sys.exit(main())
