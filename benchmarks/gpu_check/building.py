"""Compiles the libraries, their test programs, and the programs of this folder."""

import fcntl
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
#: Programs with the folders of their sources.
PROGRAMS = {"paced_load": HERE, "call_costs": HERE, "start_plain": HERE.parent / "isolation"}
COMPILER = (os.environ.get("CC", "gcc"), "-std=gnu11", "-O2", "-Wall", "-Wextra")


class NotBuilt(Exception):
    """A compiler is missing, or compilation failed; the text is its output."""


def run(command: Sequence[str]) -> None:
    """One command, which must succeed."""
    try:
        made = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise NotBuilt(f"{error.filename} not found: gcc, make and binutils are needed") from None
    if made.returncode:
        raise NotBuilt(f"{' '.join(command)}: {made.stderr.strip()[-2000:]}")


def make(folder: str, *targets: str) -> None:
    """``make TARGETS`` in the checkout's ``folder``; builds by tests are excluded by the same lock."""
    lock = ROOT / "build" / folder / "lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        jobs = f"-j{os.cpu_count() or 1}"
        # Warnings of a newer compiler must not prevent the check.
        flags = "CFLAGS=-O2 -g -Wno-error"
        run(["make", "--no-print-directory", "--silent", jobs, "-C", str(ROOT / folder), flags, *targets])


def programs(out: Path) -> None:
    """Compile the benchmarks' own programs."""
    for name, folder in PROGRAMS.items():
        run([*COMPILER, "-o", str(out / name), str(folder / f"{name}.c"), "-ldl"])
