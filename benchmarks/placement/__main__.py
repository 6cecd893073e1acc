"""GPU allocation per placement policy, on the public openb traces and by the protocol of the paper that published them.

Usage: ``python -m benchmarks.placement [--quick] [--traces DIR] [--seeds N] [TRACE …]``. For each trace and policy the pods are shuffled,
130% of the cluster's GPUs arrive, and the percentage allocated in the end is averaged over ten seeds. Prints it
next to the paper's, writes ``build/figures/placement.json`` (``TRACE.POLICY`` → percent, and times of decisions), and exits 1 if a budget is not met.
Without traces it reports that and exits 0; a quick run replays generated ones then.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Final

from benchmarks.budgets import Figures, verdict
from benchmarks.placement import generated
from benchmarks.placement.openb import TraceError, node_list, pod_lists
from benchmarks.placement.published import published
from benchmarks.placement.tasks import Done, Task, carry_out, read
from benchmarks.processes import machine
from gpushare.api.node.device import Placement
from gpushare.simulate.peers.names import PEERS

ROOT: Final = Path(__file__).parent.parent.parent
#: Next to the checkout; we may not redistribute the data.
DATA: Final = ROOT.parent / "shared" / "data" / "openb"
#: Traces that are replayed by default.
USUAL: Final = ("default", "gpushare60")
OURS: Final = tuple(placement.value for placement in Placement)
FIRST_SEED: Final = 42
SEEDS: Final = 10
_PROCESSES: Final = 2


def figures_of(done: Iterable[Done]) -> Figures:
    """``TRACE.POLICY`` → mean percent, and mean and 99th percentile of all decisions by fragmentation."""
    percents: dict[str, list[float]] = {}
    decisions_ms: list[float] = []
    for one in done:
        percents.setdefault(f"{one.task.trace}.{one.task.policy}", []).append(one.percent)
        if one.task.policy == Placement.FRAGMENTATION.value:
            decisions_ms += one.sorted_ms
    figures = {name: (statistics.mean(found), "%") for name, found in sorted(percents.items())}
    if decisions_ms:
        decisions_ms.sort()
        figures["placement_decision_mean_ms"] = (statistics.mean(decisions_ms), "ms")
        figures["placement_decision_p99_ms"] = (decisions_ms[len(decisions_ms) * 99 // 100], "ms")
    return figures


def tables(done: Sequence[Done]) -> list[str]:
    """For each trace our policies, with the spread over seeds, and the paper's."""
    lines = []
    for trace in dict.fromkeys(one.task.trace for one in done):
        lines += ["", f"{trace}: GPUs given out, % (mean of seeds, least to most)"]
        for policy in (*OURS, *PEERS):
            found = [one.percent for one in done if (one.task.trace, one.task.policy) == (trace, policy)]
            if found:
                lines.append(
                    f"  {policy:<20} {statistics.mean(found):6.2f}   ({min(found):.2f} to {max(found):.2f})"
                )
        bound = statistics.mean(one.bound_percent for one in done if one.task.trace == trace)
        lines.append(f"  {'upper bound':<20} {bound:6.2f}   (linear relaxation)")
        theirs = published(trace)
        lines += [f"  paper: {name:<14} {percent:3.2f}" for name, percent in theirs.items()]
        if not theirs:
            lines.append("  the paper's simulator published no figure for this trace")
    return lines


def main() -> int:
    """Replay, print, write, compare; returns the exit code."""
    parser = argparse.ArgumentParser(prog="benchmarks.placement", description=__doc__)
    parser.add_argument(
        "traces_named", nargs="*", metavar="TRACE", help=f"default: {' '.join(USUAL)}; all with --traces"
    )
    parser.add_argument(
        "--traces", type=Path, metavar="DIR", help="pod lists and the list of nodes (.csv or .csv.xz)"
    )
    parser.add_argument("--seeds", type=int, help=f"default {SEEDS}; with fewer nothing is written")
    parser.add_argument("--policy", action="append", choices=[*OURS, *PEERS], help="default: all of ours")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="one seed on a few nodes, to see that it runs: nothing is written or compared",
    )
    options = parser.parse_args()
    options.seeds = options.seeds or (1 if options.quick else SEEDS)
    folder = options.traces or DATA
    if folder.is_dir():
        return _replay(options, folder)
    if not options.quick:
        print(
            f"skipped: {folder} is not there; make bench-placement TRACES=DIR names another folder with openb's lists"
        )
        return 0
    print(f"{folder} is not there: generated lists are replayed")
    with tempfile.TemporaryDirectory() as made:
        generated.write(Path(made), USUAL)
        return _replay(options, Path(made))


def _replay(options: argparse.Namespace, folder: Path) -> int:
    try:
        node_list(folder)
        there = pod_lists(folder)
        if not there:
            raise TraceError(f"{folder}: no list of pods (.csv or .csv.xz)")
        named = options.traces_named or (
            list(there) if options.traces else [name for name in USUAL if name in there]
        )
        if missing := [name for name in named if name not in there]:
            raise TraceError(f"{folder}: no trace {', '.join(missing)}; there are {', '.join(there)}")
        for name in named:
            read(folder, name)
    except TraceError as error:
        print(f"bench-placement: {error}", file=sys.stderr)
        return 2
    policies = options.policy or OURS
    done = _carry_out_all(
        [
            Task(folder, name, policy, FIRST_SEED + number, options.quick)
            for name in named
            for number in range(options.seeds)
            for policy in policies
        ]
    )
    print("\n".join(tables(done)))
    figures = figures_of(done)
    whole = not options.policy and (options.quick or options.seeds >= SEEDS)
    _show(figures, write=whole and not options.quick)
    budgets = json.loads((ROOT / "benchmarks" / "placement" / "budgets.json").read_text())
    everything = whole and not options.traces and not options.traces_named
    return verdict(figures, budgets, quick=options.quick, everything=everything)


def _carry_out_all(tasks: list[Task]) -> list[Done]:
    print(f"Machine: {machine()}", flush=True)
    started, done = time.perf_counter(), []
    with ProcessPoolExecutor(_PROCESSES) as pool:
        for future in as_completed([pool.submit(carry_out, task) for task in tasks]):
            one = future.result()
            done.append(one)
            task = one.task
            print(
                f"  {len(done)}/{len(tasks)} after {time.perf_counter() - started:4.0f} s: {task.trace} {task.policy} "
                f"seed {task.seed}: {one.percent:.2f}%",
                flush=True,
            )
    return sorted(done, key=lambda one: tasks.index(one.task))


def _show(figures: Figures, *, write: bool) -> None:
    print()
    for name in ("placement_decision_mean_ms", "placement_decision_p99_ms"):
        if name in figures:
            print(
                f"  {name:<30} {figures[name][0]:.3f} ms (arrival, filter, score and reserve, by fragmentation)"
            )
    if write:
        out = ROOT / "build" / "figures" / "placement.json"
        out.parent.mkdir(parents=True, exist_ok=True)
        written = {name: round(value, 4) for name, (value, _) in figures.items()}
        out.write_text(json.dumps(written, indent=2) + "\n")
        print(f"Written: {out.relative_to(ROOT)}")


if __name__ == "__main__":
    sys.exit(main())
