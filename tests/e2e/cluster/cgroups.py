"""Cgroups of a machine: its own folder in each hierarchy (version 1) or in the one there is (version 2)."""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.e2e.cluster.waiting import wait_for

ROOT: Final = "gpushare-e2e"
_MOUNT: Final = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A mounted hierarchy: ``name`` below ``/sys/fs/cgroup`` (empty for the only one of version 2)."""

    name: str
    kind: str
    options: str

    @property
    def path(self) -> Path:
        """Where this machine has it."""
        return _MOUNT / self.name


def hierarchies() -> list[Hierarchy]:
    """What is mounted at and below ``/sys/fs/cgroup``."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        where, (kind, _, super_options) = Path(left.split()[4]), right.split()
        if kind not in {"cgroup", "cgroup2"} or not where.is_relative_to(_MOUNT):
            continue
        name = "" if where == _MOUNT else str(where.relative_to(_MOUNT))
        options = [o for o in super_options.split(",") if o not in {"rw", "ro"} and kind == "cgroup"]
        if any(o.startswith("name=") for o in options):
            options.insert(0, "none")
        found.append(Hierarchy(name, kind, ",".join(options)))
    return found


def unified() -> bool:
    """Whether there is version 2 only."""
    return any(h.kind == "cgroup2" and not h.name for h in hierarchies())


def make(group: str) -> list[Path]:
    """Make ``ROOT/group`` in every hierarchy and return the folders, ready to take processes.

    With version 2 controllers are handed down all the way.
    """
    folders = []
    for hierarchy in hierarchies():
        folder = hierarchy.path
        for part in (ROOT, *group.split("/")):
            parent, folder = folder, folder / part
            if hierarchy.kind == "cgroup2" and not hierarchy.name:
                _hand_down(parent)
            folder.mkdir(exist_ok=True)
            # A version 1 cpuset takes no process before its cpus and mems are set.
            for file in ("cpuset.cpus", "cpuset.mems"):
                if (
                    hierarchy.kind == "cgroup"
                    and (folder / file).exists()
                    and not (folder / file).read_text().strip()
                ):
                    (folder / file).write_text((parent / file).read_text())
        folders.append(folder)
    return folders


def _hand_down(folder: Path) -> None:
    for controller in (folder / "cgroup.controllers").read_text().split():
        with contextlib.suppress(OSError):
            (folder / "cgroup.subtree_control").write_text(f"+{controller}")


def processes(group: str) -> set[int]:
    """The processes in ``ROOT/group`` and below, in any hierarchy."""
    found = set()
    for hierarchy in hierarchies():
        for folder, _, files in os.walk(hierarchy.path / ROOT / group):
            if "cgroup.procs" in files:
                with contextlib.suppress(OSError):
                    found |= {int(pid) for pid in (Path(folder) / "cgroup.procs").read_text().split()}
    return found


def remove(group: str, *, timeout: float = 20.0) -> None:
    """Remove ``ROOT/group`` and what is below, and ``ROOT`` if nothing else is in it.

    Raises :class:`~tests.e2e.cluster.waiting.NotReached` when processes do not leave in time.
    """
    for hierarchy in hierarchies():
        top = hierarchy.path / ROOT / group
        wait_for(f"cgroup {top} empty", lambda top=top: _gone(top), timeout=timeout)
        with contextlib.suppress(OSError):
            (hierarchy.path / ROOT).rmdir()


def _gone(top: Path) -> bool:
    for folder, _, _ in os.walk(top, topdown=False):
        with contextlib.suppress(FileNotFoundError):
            Path(folder).rmdir()
    return not top.exists()
