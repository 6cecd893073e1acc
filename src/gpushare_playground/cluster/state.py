"""The playground's state folder: short, private, and cleaned of the remains of a killed playground."""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from gpushare_playground.kubelet.cleanup import stop_containers

_PREFIX: Final = "gpushare-"
_OWNER: Final = "supervisor.pid"


def make_state() -> Path:
    """A new folder, readable by its owner only. Its path is short, because it contains Unix sockets of nodes."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_parent()))
    (folder / _OWNER).write_text(f"{os.getpid()} {_start_ticks(os.getpid())}\n")
    return folder


def remove_state(folder: Path) -> None:
    """End the containers that are recorded under ``folder`` and remove it."""
    for node in folder.glob("nodes/*"):
        stop_containers(node, grace_s=2.0)
    shutil.rmtree(folder, ignore_errors=True)


def tidy() -> tuple[list[Path], list[Path]]:
    """Remove the folders of this user's playgrounds whose supervisor has ended; returns them, and those of running playgrounds."""
    removed, running = [], []
    for owner in _parent().glob(f"{_PREFIX}*/{_OWNER}"):
        with suppress(OSError, ValueError):
            if owner.stat().st_uid != os.getuid():
                continue
            pid, ticks = map(int, owner.read_text().split())
            if _start_ticks(pid) != ticks:
                remove_state(owner.parent)
                removed.append(owner.parent)
            else:
                running.append(owner.parent)
    return removed, running


def _parent() -> Path:
    # $TMPDIR may be long; a socket's path may have at most 107 bytes.
    folder = Path(tempfile.gettempdir())
    return folder if len(str(folder)) <= 30 else Path("/tmp")  # noqa: S108


def _start_ticks(pid: int) -> int:
    """When the process started, in clock ticks since boot; 0 if it does not exist (proc(5))."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0
