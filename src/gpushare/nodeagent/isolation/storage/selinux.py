"""SELinux labels of what containers get from the node.

Where SELinux is enforced, a confined container may use files of a few types only, and the dynamic linker passes over a preloaded library that
it cannot read: the program would run without limits. New files get the type of their folder. Blocks.
"""

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from gpushare.nodeagent.errors import NodeAgentError

logger = logging.getLogger(__name__)

#: The type of files that every container may read, map and write (policy of the project container-selinux).
CONTAINER_FILE: Final = "container_file_t"
_ATTRIBUTE: Final = "security.selinux"
_DEFAULT: Final = f"system_u:object_r:{CONTAINER_FILE}:s0"


def is_enforced(host_root: Path) -> bool:
    """Whether the node enforces SELinux; ``host_root``: the host's root as seen here."""
    try:
        return (host_root / "sys/fs/selinux/enforce").read_bytes().strip() == b"1"
    except OSError:
        return False


def type_of(path: Path) -> str:
    """The type in the label of a file; empty if it has none."""
    fields = _label(path).split(":")
    return fields[2] if len(fields) > 2 else ""


def let_containers_use(folder: Path) -> None:
    """Label ``folder`` and what is in it for containers, where it is not; raises ``NodeAgentError``."""
    parts = [folder, *sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())]
    for part in parts:
        before = type_of(part)
        if before == CONTAINER_FILE:
            continue
        try:
            # ``part`` comes last, so that what an agent that dies leaves is labelled by the next one.
            for inside, folders, files in os.walk(part, topdown=False):
                for name in (*files, *folders, "."):
                    _relabel(Path(inside, name))
        except OSError as error:
            raise NodeAgentError(
                str(part),
                f"SELinux is enforced, containers may not use files of type {before or 'unknown'}, and the label cannot be changed "
                f"({error.strerror or error}): run `chcon -R -t {CONTAINER_FILE} FOLDER` with that folder of the node",
            ) from None
        logger.info(
            "SELinux is enforcing: labelled %s as %s so that containers may use it", part, CONTAINER_FILE
        )


def _relabel(path: Path) -> None:
    label = f"{_for_containers(_label(path))}\0".encode()
    # Directories of containers come and go meanwhile.
    with suppress(FileNotFoundError):
        os.setxattr(path, _ATTRIBUTE, label, follow_symlinks=False)


def _label(path: Path) -> str:
    try:
        return os.getxattr(path, _ATTRIBUTE, follow_symlinks=False).rstrip(b"\0").decode(errors="replace")
    except OSError:
        return ""


def _for_containers(label: str) -> str:
    """``label`` with the type for containers, at the level that includes containers of all categories."""
    fields = label.split(":")
    return ":".join((*fields[:2], CONTAINER_FILE, "s0")) if len(fields) > 2 else _DEFAULT
