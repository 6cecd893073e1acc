"""The paths of one node's kubelet.

::

    ROOT/device-plugins/kubelet.sock, kubelet_internal_checkpoint, the plugins' own sockets
    ROOT/plugins_registry/                       as every kubelet has it; this one looks for no plugins there
    ROOT/pod-resources/kubelet.sock
    ROOT/pods/UID/pod.json                       the pod's identity, for cleaning up after a restart
    ROOT/pods/UID/volumes/NAME
    ROOT/pods/UID/CONTAINER/rootfs               the container's own folder
    ROOT/pods/UID/CONTAINER/ATTEMPT/             record and log of one start
    ROOT/proc/PID/cgroup                         the container of a process
    ROOT/cgroup/                                 stands in for the node's cgroups
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpushare_playground.kubelet.errors import BadSettings

#: ``sun_path`` of a Unix socket, in bytes, without its final zero (unix(7)).
LONGEST_SOCKET_PATH: Final = 107
CHECKPOINT_NAME: Final = "kubelet_internal_checkpoint"


@dataclass(frozen=True, slots=True)
class Folders:
    """The paths under ``root``."""

    root: Path

    @property
    def device_plugins(self) -> Path:
        """Sockets of the kubelet and of the plugins, and the checkpoint."""
        return self.root / "device-plugins"

    @property
    def plugins_registry(self) -> Path:
        """Sockets of plugins that want to be found, such as DRA drivers."""
        return self.root / "plugins_registry"

    @property
    def registration_socket(self) -> Path:
        """The socket at which plugins register."""
        return self.device_plugins / "kubelet.sock"

    @property
    def checkpoint(self) -> Path:
        """The devices of each container."""
        return self.device_plugins / CHECKPOINT_NAME

    @property
    def pod_resources_socket(self) -> Path:
        """The socket of the pod resources service."""
        return self.root / "pod-resources" / "kubelet.sock"

    @property
    def pods(self) -> Path:
        """One folder per pod, by UID."""
        return self.root / "pods"

    @property
    def proc(self) -> Path:
        """Stands in for the kernel's ``/proc`` of container processes."""
        return self.root / "proc"

    @property
    def cgroups(self) -> Path:
        """Stands in for the root of the node's cgroups."""
        return self.root / "cgroup"

    def make(self) -> None:
        """Create the folders; raises ``BadSettings`` if they cannot be created or the sockets' paths are too long."""
        for socket in (self.registration_socket, self.pod_resources_socket):
            check_socket_path(socket)
        for folder in (
            self.device_plugins,
            self.plugins_registry,
            self.pod_resources_socket.parent,
            self.pods,
        ):
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise BadSettings(f"folder {folder}", f"cannot be made: {error.strerror}") from None


def check_socket_path(path: Path) -> None:
    """Raise ``BadSettings`` if no Unix socket can have this path."""
    size = len(os.fsencode(path))
    if size > LONGEST_SOCKET_PATH:
        raise BadSettings(
            f"socket {path}",
            f"its path has {size} bytes, a Unix socket's has {LONGEST_SOCKET_PATH} at most; "
            "choose a shorter folder (--root)",
        )


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically: a reader, and a restart, see the old text or the new one, never a part."""
    beside = path.with_name(f".{path.name}.new")
    with beside.open("w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    beside.replace(path)


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file, or ``None`` if it does not exist or is not readable."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
