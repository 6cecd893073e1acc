"""Folders in place of cgroups of version 2: the fake driver's limits for a container are set on its own.

::

    ROOT/cgroup/cgroup.controllers
    ROOT/cgroup/kubepods/besteffort/podUID/ID    while the container runs
    ROOT/pods/UID/CONTAINER/ATTEMPT/cgroup       its cgroup, in the kernel's format

Containers here are processes of this machine, whose kernel has no such cgroups. On a real node a program is in its container's
cgroup from its first instruction, so here its environment names it; the node agent reads it in ``fake_proc``'s files.
"""

import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

#: Identifies the root of all cgroups of version 2.
_CONTROLLERS: Final = "cgroup.controllers"
_BELOW: Final = "kubepods/besteffort"


class Start(Protocol):
    """One start of a container."""

    @property
    def folder(self) -> Path:
        """The folder of its files."""

    @property
    def container_id(self) -> str:
        """Its name."""

    @property
    def pod_uid(self) -> str:
        """The UID of its pod."""


def cgroup_line(pod_uid: str, container_id: str) -> str:
    """The kernel's line for a container's processes (cgroup version 2, the kubelet's driver ``cgroupfs``)."""
    return f"0::/{_BELOW}/pod{pod_uid}/{container_id}\n"


class Cgroups:
    """The cgroups of one node, below ``root``. Nothing here raises: without its cgroup a container lacks only this limit."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def enter(self, start: Start) -> Mapping[str, str]:
        """Create a container's, before its program starts; returns the environment that names it for the fake driver."""
        mine = start.folder / "cgroup"
        try:
            self._of(start).mkdir(parents=True, exist_ok=True)
            (self._root / _CONTROLLERS).touch()
            mine.write_text(cgroup_line(start.pod_uid, start.container_id))
        except OSError:
            return {}
        return {"FAKEGPU_CGROUPS": str(self._root), "FAKEGPU_PROC": str(mine)}

    def leave(self, start: Start) -> None:
        """The container has ended."""
        with suppress(OSError):
            self._of(start).rmdir()

    def forget(self, pod_uid: str) -> None:
        """The pod is gone."""
        shutil.rmtree(self._pod(pod_uid), ignore_errors=True)

    def _pod(self, uid: str) -> Path:
        return self._root / _BELOW / f"pod{uid}"

    def _of(self, start: Start) -> Path:
        return self._pod(start.pod_uid) / start.container_id
