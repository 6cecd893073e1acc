"""Processes of one container race for its memory, and some are killed; the driver's own sum is
checked all the time.

``python -m tests.integration.isolation.racing --seconds 60 --processes 64 --kills 1000`` (``make
race-isolation``) is the long form; it prints the output of allocations_race.c, and exits with 1
when a limit was passed, a process hung or failed, or not exactly the limit could be allocated
afterwards.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gpushare_playground import gpus
from tests.unit.fakegpu import building as fakegpu
from tests.unit.isolation.building import MIB, build, lay_out

#: Odd sums and small contexts, for much contention.
LIMIT_MIB: Final = 2154
CONTEXT_MIB: Final = 16

_SUMMARY: Final = re.compile(r"(\d+) killed, (\d+) rounds; (\d+) looks, at most (\d+) MiB\n")


@dataclass(frozen=True)
class Raced:
    """The result of a race. ``problem`` is empty on success."""

    killed: int
    rounds: int
    looks: int
    most_mib: int
    problem: str


def race(folder: Path, length: str, processes: int, kills: int, *, timeout_s: float) -> Raced:
    """``length``: rounds of each process, or seconds with an ``s`` behind them."""
    preset = gpus.preset("v100-16160", "n1")
    node = replace(preset, gpus=(replace(preset.gpus[0], context_mib=CONTEXT_MIB),))
    gpus.write(folder / "node.gpus", node)
    here = lay_out(folder / "container", folder / "node.gpus")
    here.limit(f"{node.gpus[0].uuid} memory_bytes={LIMIT_MIB * MIB}")
    program = build("linked") / "allocations_race"
    real = fakegpu.BUILT / "libnvidia-ml.so.1"
    arguments = (real, node.gpus[0].uuid, str(LIMIT_MIB), str(processes), length, str(kills))
    result = subprocess.run(
        [program, *arguments],
        env=here.environment(),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    summary = _SUMMARY.fullmatch(result.stdout)
    numbers = map(int, summary.groups()) if summary else (0, 0, 0, 0)
    problem = result.stderr or result.stdout * (summary is None) or f"ended with {result.returncode}"
    return Raced(*numbers, problem="" if result.returncode == 0 and summary else problem)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Processes of one container race for its memory, some are killed."
    )
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--processes", type=int, default=64)
    parser.add_argument("--kills", type=int, default=1000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        raced = race(
            Path(folder),
            f"{arguments.seconds}s",
            arguments.processes,
            arguments.kills,
            timeout_s=arguments.seconds + 300,
        )
    print(
        f"{arguments.processes} processes for {arguments.seconds} s, {raced.killed} killed, {raced.rounds} allocated or freed; the driver "
        f"was asked {raced.looks} times and counted {raced.most_mib} MiB at most, the limit is {LIMIT_MIB} MiB"
    )
    print(raced.problem or "afterwards exactly the limit could be allocated")
    return bool(raced.problem)


if __name__ == "__main__":
    sys.exit(main())
