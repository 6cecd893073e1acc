"""The parts in C, built by their own Makefiles: once for all test processes."""

import fcntl
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: With what C programs are also built for ``make sanitize``; ``make test`` runs the plain builds, which are there already.
SANITIZERS = tuple(pytest.param(one, marks=pytest.mark.sanitized) for one in ("address", "thread"))


def make(folder: str, target: str, lock: Path) -> None:
    """``make TARGET`` in the checkout's ``folder``, for which the others who hold the same ``lock`` wait."""
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
