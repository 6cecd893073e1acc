"""Settings of isolation and the watchdog. Imports nothing heavy."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, Literal


class AskedIsolation(Enum):
    """Values of ``--isolation``."""

    NONE = "none"
    AUTO = "auto"
    PRELOAD = "preload"
    MPS = "mps"
    DRIVER = "driver"


#: Compute that others leave idle: unused (hard), or available to any container (idle).
CorePolicy = Literal["hard", "idle"]
CORE_POLICIES: Final[tuple[CorePolicy, ...]] = ("hard", "idle")

WatchPolicy = Literal["off", "report", "kill"]
WATCH_POLICIES: Final[tuple[WatchPolicy, ...]] = ("off", "report", "kill")

#: What to do about containers that do not give back memory above their request, which other pods have requested.
ReclaimPolicy = Literal["wait", "kill"]
RECLAIM_POLICIES: Final[tuple[ReclaimPolicy, ...]] = ("wait", "kill")

#: Each isolated container has a directory there on the node; our libraries and MPS's pipes are next to it.
ISOLATION_DIR: Final = Path("/var/lib/gpushare/containers")
#: Where the image has the isolation libraries and the arbiter.
ISOLATION_LIBRARY_DIR: Final = Path("/usr/lib/gpushare/isolation")


@dataclass(frozen=True, slots=True)
class Watch:
    """Settings of the watchdog: what it does about a container that is above its share for ``grace_s`` seconds.

    ``proc`` is the host's procfs, ``cgroups`` the root of its cgroup v2 hierarchy.
    """

    policy: WatchPolicy = "report"
    grace_s: float = 30.0
    proc: Path = Path("/proc")
    cgroups: Path = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class IsolationOptions:
    """``pods_per_gpu`` is the maximum number of isolated pods per GPU (``gpushare.api.node.device.ISOLATED_POD_CAP``)."""

    asked: AskedIsolation = AskedIsolation.NONE
    folder: Path = ISOLATION_DIR
    library_folder: Path = ISOLATION_LIBRARY_DIR
    core_policy: CorePolicy = "hard"
    pods_per_gpu: int = 16
    reclaim: ReclaimPolicy = "kill"
    watch: Watch = Watch()
