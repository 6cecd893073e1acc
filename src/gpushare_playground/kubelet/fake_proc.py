"""Tells whose a process is: ``ROOT/proc/PID/cgroup``, in the kernel's words for a container's processes; ``comm`` beside it is its name.

Containers here are in no cgroup of the kernel's, so what a node agent reads in ``/proc`` on a real node is written here.
Whose a process is follows from its ancestors: a container's shim inherits whatever its program leaves behind, and a
command of ``kubectl exec`` is known by its first process. A process that has just begun is told of a moment later.
"""

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")


def belonging(roots: Mapping[int, str], parents: Mapping[int, int]) -> dict[int, str]:
    """Each process that is one of ``roots`` or descends from one, with what ``roots`` has for that."""
    found: dict[int, str] = {}
    for process in parents:
        line, here = [], process
        while here in parents and here not in found:
            line.append(here)
            found[here] = roots.get(here, "")
            if here in roots:
                break
            here = parents[here]
        found |= dict.fromkeys(line, found.get(here, ""))
    return {pid: whose for pid, whose in found.items() if whose}


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
    """What is written below ``folder``, which is begun anew. Its methods may block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._told: dict[int, str] = {}
        self._begun = False

    def tell(self, roots: Mapping[int, str]) -> None:
        """Have a file for each process that belongs to one of ``roots`` (PIDs and their cgroups), and no other."""
        if not self._begun:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir(parents=True)
            self._begun = True
        if not roots and not self._told:
            return
        wanted = belonging(roots, parents()) if roots else {}
        for pid in [one for one, cgroup in self._told.items() if wanted.get(one) != cgroup]:
            shutil.rmtree(self._folder / str(pid), ignore_errors=True)
            del self._told[pid]
        for pid in wanted.keys() - self._told.keys():
            # Whole or not there: an empty file would say that the process is in no container.
            new = self._folder / f".{pid}"
            new.mkdir(exist_ok=True)
            (new / "cgroup").write_text(wanted[pid])
            with suppress(FileExistsError):
                # Its name, as it is when somebody looks: a program that is started by another has that one's first.
                (new / "comm").symlink_to(PROC / str(pid) / "comm")
            new.rename(self._folder / str(pid))
            self._told[pid] = wanted[pid]
