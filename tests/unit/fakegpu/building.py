"""Builds the fake driver once per test run, and finds third-party clients of it."""

import functools
import os
import shutil
from pathlib import Path

import pytest

from tests.building import ROOT, make

BUILT = ROOT / "build" / "fakegpu"
LIBRARY = BUILT / "libnvidia-ml.so.1"
SYSTEM = ROOT / "build" / "system"
IN_CI = os.environ.get("CI") == "true"


@functools.cache
def build(target: str) -> Path:
    """Run ``make TARGET``; several test processes may call it at the same time."""
    make("fakegpu", target, BUILT / "lock")
    return BUILT


def system_program(name: str) -> str:
    """A program that comes only from a system's packages: skips where it is missing, fails in CI."""
    unpacked = SYSTEM / "usr" / "bin" / name
    found = str(unpacked) if unpacked.exists() else shutil.which(name)
    if found is None:
        missing = f"{name} is not here; scripts/install-system-packages puts it into build/system"
        if IN_CI:
            pytest.fail(missing)
        pytest.skip(missing)
    return found


def environment(node: Path, **more: str) -> dict[str, str]:
    """Environment in which a process finds the fake driver, without variables that would mislead it."""
    libraries = [str(BUILT), *map(str, (SYSTEM / "usr" / "lib").glob("*-linux-gnu"))]
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("FAKEGPU_", "LD_"))
    }
    return inherited | {
        "LD_LIBRARY_PATH": ":".join(libraries),
        "FAKEGPU_NODE": str(node),
        "TERM": "xterm",
        "COLUMNS": "200",
        "LINES": "50",
        **more,
    }
