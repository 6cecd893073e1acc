"""Where the driver's NVML library is on a node, as seen from the node agent's container.

The driver belongs to the node, not to the container. The chart mounts the node's root folder, and the library is searched under
it where distributions, NVIDIA's driver container, GKE and WSL install it.
"""

import errno
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LIBRARY: Final = "libnvidia-ml.so.1"

#: Where distributions install it, and Debian's alternatives.
_USUAL: Final = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu/nvidia/current",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "lib64",
    "usr/lib",
)
#: The root folders of NVIDIA's driver container: of the GPU operator, and of older versions.
_DRIVER_CONTAINERS: Final = ("run/nvidia/driver", "driver-root")
#: GKE, AKS and others that install it manually, WSL, Bottlerocket, Talos.
_ELSEWHERE: Final = (
    "home/kubernetes/bin/nvidia/lib64",
    "usr/local/nvidia/lib64",
    "opt/nvidia/lib64",
    "usr/lib/wsl/lib",
    "x86_64-bottlerocket-linux-gnu/sys-root/usr/lib/nvidia/tesla",
    "aarch64-bottlerocket-linux-gnu/sys-root/usr/lib/nvidia/tesla",
    "usr/local/glibc/usr/lib",
)
FOLDERS: Final = (
    *_USUAL,
    *(f"{root}/{folder}" for root in _DRIVER_CONTAINERS for folder in _USUAL),
    *_ELSEWHERE,
)
_MOST_LINKS: Final = 40


@dataclass(frozen=True, slots=True)
class LibraryFile:
    """A library file, links resolved. Two that differ in any field are different libraries."""

    path: Path
    device: int
    inode: int
    changed_ns: int


def libraries(root: Path, listed: Sequence[str] = ()) -> list[LibraryFile]:
    """Every NVML library, best first: in the folders ``listed``, then under ``root``.

    A file that is visible in several folders is returned once.
    """
    found = [_file("/", folder) for folder in listed if folder] + [_file(root, folder) for folder in FOLDERS]
    return list({(one.device, one.inode): one for one in reversed(found) if one is not None}.values())[::-1]


def _file(root: str | Path, folder: str) -> LibraryFile | None:
    try:
        real = _within(f"{folder}/{LIBRARY}", str(root))
        status = os.stat(real)
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return LibraryFile(Path(real), status.st_dev, status.st_ino, status.st_mtime_ns)


def _within(path: str, root: str) -> str:
    """``path`` with links resolved as in a process whose root folder is ``root``; raises ``OSError``.

    On strings, and no further than to the first folder that does not exist: the agent searches every few seconds.
    """
    here, ahead, links = root, path.split("/")[::-1], 0
    while ahead:
        part = ahead.pop()
        if part in ("", "."):
            continue
        if part == "..":
            here = root if here == root else os.path.dirname(here)
            continue
        below = os.path.join(here, part)
        try:
            target = os.readlink(below)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            here = below  # no link
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        if target.startswith("/"):
            here = root
        ahead += target.split("/")[::-1]
    return here
