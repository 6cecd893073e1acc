"""What the command line says of isolation. Imports nothing heavy."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, Literal


class AskedIsolation(Enum):
    """What ``--isolation`` says."""

    NONE = "none"
    AUTO = "auto"
    PRELOAD = "preload"
    MPS = "mps"
    DRIVER = "driver"


#: What becomes of compute that others leave idle: nobody's, or whoever can use it.
CorePolicy = Literal["hard", "idle"]
CORE_POLICIES: Final[tuple[CorePolicy, ...]] = ("hard", "idle")

WatchPolicy = Literal["off", "report", "kill"]
WATCH_POLICIES: Final[tuple[WatchPolicy, ...]] = ("off", "report", "kill")

#: Where each isolated container has a directory on the node; beside it lie our libraries and MPS's pipes.
ISOLATION_DIR: Final = Path("/var/lib/gpushare/containers")
#: Where the image has our libraries and the arbiter.
ISOLATION_LIBRARY_DIR: Final = Path("/usr/lib/gpushare/isolation")


@dataclass(frozen=True, slots=True)
class Watch:
    """What is done about a container that is above its share for ``grace_s`` seconds.

    ``proc`` is where the node's processes are told of, ``cgroups`` the root of their cgroups of version 2.
    """

    policy: WatchPolicy = "report"
    grace_s: float = 30.0
    proc: Path = Path("/proc")
    cgroups: Path = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class IsolationOptions:
    """``pods_per_gpu`` is the most pods that are held apart on one GPU (``gpushare.api.node.device.ISOLATED_POD_CAP``)."""

    asked: AskedIsolation = AskedIsolation.NONE
    folder: Path = ISOLATION_DIR
    library_folder: Path = ISOLATION_LIBRARY_DIR
    core_policy: CorePolicy = "hard"
    pods_per_gpu: int = 16
    watch: Watch = Watch()
