"""Processes of the node: their owners from ``/proc``, and killing one."""

import logging
import os
import signal
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from gpushare.nodeagent.isolation.watchdog.cgroups import Owner, container_cgroup, owner

logger = logging.getLogger(__name__)

PROC: Final = Path("/proc")
#: How the kernel names NVIDIA's MPS control daemon and server (15 bytes of it): they work for all others.
_MPS: Final = "nvidia-cuda-mps"


def owners(pids: Iterable[int], proc: Path = PROC) -> dict[int, Owner | None]:
    """The owner of each process; ``None`` for NVIDIA's servers that this program runs. Those that have ended are left out."""
    own_pod = _owner(os.getpid(), PROC)
    found: dict[int, Owner | None] = {}
    for pid in set(pids):
        whose = _owner(pid, proc)
        if whose is None:
            continue
        ours = not whose.pod_uid or (own_pod is not None and whose.pod_uid == own_pod.pod_uid)
        found[pid] = None if ours and _name(pid, proc) == _MPS else whose
    return found


def container_cgroups(proc: Path = PROC) -> dict[Owner, set[str]]:
    """The cgroups of all containers with a process, as paths below the root. Reads every process.

    More than one for an owner that others imitate.
    """
    found: dict[Owner, set[str]] = {}
    for entry in os.scandir(proc):
        if not entry.name.isdecimal():
            continue
        with suppress(OSError):
            contained = container_cgroup((proc / entry.name / "cgroup").read_text(errors="replace"))
            if contained is not None:
                found.setdefault(contained[0], set()).add(contained[1])
    return found


def processes_of(owners: Collection[Owner], proc: Path = PROC) -> dict[Owner, list[int]]:
    """The processes of these containers. Reads every process."""
    found: dict[Owner, list[int]] = {}
    for entry in os.scandir(proc):
        if entry.name.isdecimal():
            whose = _owner(int(entry.name), proc)
            if whose is not None and whose in owners:
                found.setdefault(whose, []).append(int(entry.name))
    return found


def kill(pid: int, whose: Owner, proc: Path = PROC) -> str:
    """Kill the process if it is still ``whose``; returns why not, empty on success."""
    try:
        # The handle is of one process; its owner is checked afterwards, as PIDs are reused.
        handle = os.pidfd_open(pid)
    except OSError as error:
        return error.strerror or str(error)
    try:
        if _owner(pid, proc) != whose:
            return "the PID now belongs to another process"
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError as error:
        return error.strerror or str(error)
    finally:
        os.close(handle)
    return ""


def _owner(pid: int, proc: Path) -> Owner | None:
    try:
        return owner((proc / str(pid) / "cgroup").read_text(errors="replace"))
    except OSError:
        return None


def _name(pid: int, proc: Path) -> str:
    with suppress(OSError):
        return (proc / str(pid) / "comm").read_text(errors="replace").strip()
    return ""
