"""The parts in C, built by their own Makefiles: once for all test processes."""

import fcntl
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: What C programs are also built with by ``make sanitize``; in ``make test`` the plain builds do, which are there already.
SANITIZERS = ("address", "thread") if os.environ.get("GPUSHARE_SANITIZE") else ()


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
