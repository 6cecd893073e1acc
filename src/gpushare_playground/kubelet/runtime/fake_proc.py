"""A fake ``/proc``: ``ROOT/proc/PID/cgroup`` names the container of a process like the kernel; ``comm`` next to it is its name.

Containers here are in no cgroup of the kernel, so what a node agent reads in ``/proc`` on a real node is written here.
The container of a process is derived from its ancestors: a container's shim inherits whatever its program leaves behind, and a
command of ``kubectl exec`` is identified by its first process. New processes appear with a delay.
"""

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")


def belonging(roots: Mapping[int, str], parents: Mapping[int, int]) -> dict[int, str]:
    """Each process that is one of ``roots`` or descends from one, with the value of that root."""
    owners: dict[int, str] = {}
    for process in parents:
        line, here = [], process
        while here in parents and here not in owners:
            line.append(here)
            owners[here] = roots.get(here, "")
            if here in roots:
                break
            here = parents[here]
        owners |= dict.fromkeys(line, owners.get(here, ""))
    return {pid: whose for pid, whose in owners.items() if whose}


def parents(proc: Path = PROC) -> dict[int, int]:
    """Every process of this machine and its parent."""
    read: dict[int, int] = {}
    for name in os.listdir(proc):
        if name.isdecimal():
            # Gone meanwhile.
            with suppress(OSError, IndexError, ValueError):
                read[int(name)] = int((proc / name / "stat").read_bytes().rpartition(b") ")[2].split()[1])
    return read


class FakeProc:
    """The files below ``folder``, which is emptied first. Methods may block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: dict[int, str] = {}
        self._emptied = False

    def write(self, roots: Mapping[int, str]) -> None:
        """Write a file for each process that belongs to one of ``roots`` (PIDs and their cgroups), and no other."""
        if not self._emptied:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir(parents=True)
            self._emptied = True
        if not roots and not self._written:
            return
        wanted = belonging(roots, parents()) if roots else {}
        for pid in [old for old, cgroup in self._written.items() if wanted.get(old) != cgroup]:
            shutil.rmtree(self._folder / str(pid), ignore_errors=True)
            del self._written[pid]
        for pid in wanted.keys() - self._written.keys():
            # Complete or absent: an empty file would mean that the process is in no container.
            new = self._folder / f".{pid}"
            new.mkdir(exist_ok=True)
            (new / "cgroup").write_text(wanted[pid])
            with suppress(FileExistsError):
                # A link: right after a fork the name is still that of the parent.
                (new / "comm").symlink_to(PROC / str(pid) / "comm")
            new.rename(self._folder / str(pid))
            self._written[pid] = wanted[pid]
