"""What the command line sets. Imports nothing heavy: a slip in the options is told at once."""

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

#: Where container runtimes look for CDI descriptions, in rising order of precedence.
CDI_FOLDERS: Final = (Path("/etc/cdi"), Path("/var/run/cdi"))
#: The kernel's limit on the path of a Unix socket, in bytes (sockaddr_un, less the closing zero).
MOST_PATH_BYTES: Final = 107


@dataclass(frozen=True, slots=True)
class Pace:
    """How often things are looked at, in seconds."""

    wait_s: float = 1.0
    """The longest wait for XIDs, which is also how long a stop may take."""
    probe_s: float = 5.0
    reopen_s: float = 30.0
    """How long after a failed probe NVML is opened anew: a GPU that was lost comes back only so."""
    look_first_s: float = 1.0
    look_most_s: float = 15.0
    """How late a driver that was installed meanwhile may be found."""
    cdi_s: float = 2.0
    """How late a CDI description that was changed may be found."""
    isolation_s: float = 5.0
    """How late it may be found that what isolation needs has come or gone."""
    keep_s: float = 60.0
    """How long the directory of a container is kept that nobody seems to use, and that is half made or removed."""
    sweep_s: float = 15.0
    """How often directories are looked for that nobody uses."""
    watch_s: float = 5.0
    """How often it is looked who uses the GPUs."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line sets."""

    node: str
    kubelet_dir: Path
    pod_resources: Path
    unit: MemoryUnit = MemoryUnit.GIB
    doors: tuple[Door, ...] = ()
    pace: Pace = field(default_factory=Pace)
    xid_recovery_s: float = 300.0
    driver_root: Path = Path("/")
    container_runtime: Asked = Asked.AUTO
    cdi_folders: tuple[Path, ...] = CDI_FOLDERS
    host_root: Path = Path("/")
    isolation: IsolationOptions = field(default_factory=IsolationOptions)


def check_socket_paths(folder: Path) -> None:
    """Raise ``InvalidSetting`` when the sockets in ``folder`` would have too long a path."""
    length = len(str(folder / socket_name(PRESENCE, 0)).encode())
    if length > MOST_PATH_BYTES:
        raise InvalidSetting(
            f"--kubelet-dir {folder}",
            f"the path of its sockets has {length} bytes, more than the {MOST_PATH_BYTES} that the kernel takes; "
            "use a shorter path",
        )
