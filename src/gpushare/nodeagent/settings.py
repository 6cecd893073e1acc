"""What the command line sets. Imports nothing heavy: a slip in the options is told at once."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpushare.model import names
from gpushare.model.quantity import MemoryUnit
from gpushare.nodeagent.errors import InvalidSetting

PROGRAM: Final = "gpushare node-agent"

#: Every resource that this program may advertise, and the socket that it is served on.
SOCKETS: Final = {
    names.GPU_MEM: "gpushare-gpu-mem.sock",
    names.GPU_CORE: "gpushare-gpu-core.sock",
    names.GPU_WHOLE: "gpushare-gpu.sock",
}
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
    look_most_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line sets."""

    node: str
    kubelet_dir: Path
    pod_resources: Path
    unit: MemoryUnit = MemoryUnit.GIB
    listen: tuple[str, int] | None = None
    pace: Pace = field(default_factory=Pace)
    xid_quiet_s: float = 300.0


def check_socket_paths(folder: Path) -> None:
    """Raise ``InvalidSetting`` when the sockets in ``folder`` would have too long a path."""
    length = max(len(str(folder / socket).encode()) for socket in SOCKETS.values())
    if length > MOST_PATH_BYTES:
        raise InvalidSetting(
            f"--kubelet-dir {folder}",
            f"the path of its sockets has {length} bytes, more than the {MOST_PATH_BYTES} that the kernel takes; "
            "use a shorter path",
        )
