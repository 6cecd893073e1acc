"""Builds the C parts with their Makefiles, once for all test processes."""

import fcntl
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: Sanitizers of ``make sanitize``; ``make test`` runs the plain builds, which exist already.
SANITIZERS = tuple(pytest.param(one, marks=pytest.mark.sanitized) for one in ("address", "thread"))


def make(folder: str, target: str, lock: Path) -> None:
    """``make TARGET`` in the checkout's ``folder``, one at a time per ``lock``."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        made = subprocess.run(
            ["make", "--no-print-directory", "-C", str(ROOT / folder), target],
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
    assert made.returncode == 0, made.stdout + made.stderr
