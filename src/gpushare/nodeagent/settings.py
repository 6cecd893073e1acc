"""Settings from the command line. Imports nothing heavy: a wrong option is reported immediately."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpushare.api.quantity import MemoryUnit
from gpushare.httpserver.listeners import Door
from gpushare.nodeagent.deviceplugin.socket_names import PRESENCE, socket_name
from gpushare.nodeagent.errors import InvalidSetting
from gpushare.nodeagent.isolation.options import IsolationOptions
from gpushare.nodeagent.runtime.selection import Asked

PROGRAM: Final = "gpushare node-agent"

#: Where container runtimes look for CDI specs, in rising order of precedence.
CDI_DIRS: Final = (Path("/etc/cdi"), Path("/var/run/cdi"))
#: The kernel's limit on the path of a Unix socket, in bytes (sockaddr_un, less the closing zero).
MOST_PATH_BYTES: Final = 107


@dataclass(frozen=True, slots=True)
class Pace:
    """Intervals in seconds."""

    wait_s: float = 1.0
    """The longest wait for XIDs, which also bounds how long stopping takes."""
    probe_s: float = 5.0
    reopen_s: float = 30.0
    """Least time between openings of NVML, without which a lost GPU does not come back and a new one is not found."""
    look_first_s: float = 1.0
    look_most_s: float = 15.0
    """Longest interval between attempts to find a driver."""
    cdi_s: float = 2.0
    """Interval of looking for changed CDI specs."""
    isolation_s: float = 5.0
    """Interval of checking what isolation needs, and how large containers' usage files are."""
    keep_s: float = 60.0
    """How long unused or incomplete directories of containers are kept."""
    sweep_s: float = 15.0
    """Interval of removing unused directories of containers."""
    watch_s: float = 5.0
    """Sampling interval of processes and readings."""


@dataclass(frozen=True, slots=True)
class DefaultShare:
    """What a claim gets that requests no amount; 0 MiB: all of a GPU, 0 percent: compute is not limited."""

    mib: int = 0
    core_percent: int = 0


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one node agent."""

    node: str
    kubelet_dir: Path
    pod_resources: Path
    plugins_registry: Path
    unit: MemoryUnit = MemoryUnit.GIB
    doors: tuple[Door, ...] = ()
    pace: Pace = field(default_factory=Pace)
    xid_recovery_s: float = 300.0
    driver_root: Path = Path("/")
    container_runtime: Asked = Asked.AUTO
    cdi_folders: tuple[Path, ...] = CDI_DIRS
    host_root: Path = Path("/")
    isolation: IsolationOptions = field(default_factory=IsolationOptions)
    default_share: DefaultShare = field(default_factory=DefaultShare)
    mig_dynamic: bool = False
    """Whether MIG instances are created for claims."""


def check_socket_paths(folder: Path) -> None:
    """Raise ``InvalidSetting`` if the paths of sockets in ``folder`` would be too long."""
    length = len(str(folder / socket_name(PRESENCE, 0)).encode())
    if length > MOST_PATH_BYTES:
        raise InvalidSetting(
            f"--kubelet-dir {folder}",
            f"the path of its sockets has {length} bytes, more than the {MOST_PATH_BYTES} that the kernel takes; "
            "use a shorter path",
        )
