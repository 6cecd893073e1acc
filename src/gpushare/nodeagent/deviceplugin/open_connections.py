"""Connections of other processes to a Unix socket of this process, whichever library accepted them."""

import os
import socket
import struct
from pathlib import Path
from typing import Final

#: ``struct ucred``: process, user, group.
_CREDENTIALS: Final = struct.Struct("3i")


def connections_to(path: Path) -> list[socket.socket]:
    """A second handle of each connection that another process has open to ``path``.

    The caller closes them, which closes no connection.
    """
    found: list[socket.socket] = []
    for entry in os.listdir("/proc/self/fd"):
        # The descriptor that the listing was read through is reused for one of the copies.
        if any(copy.fileno() == int(entry) for copy in found):
            continue
        try:
            number = os.dup(int(entry))
        except OSError:
            continue  # closed meanwhile
        try:
            copy = socket.socket(fileno=number)
        except OSError:
            os.close(number)  # not a socket
            continue
        if _is_connection_to(copy, path):
            found.append(copy)
        else:
            copy.close()
    return found


def _is_connection_to(copy: socket.socket, path: Path) -> bool:
    try:
        return (
            copy.family == socket.AF_UNIX
            # A library may write more slashes than are needed.
            and os.path.normpath(os.fsdecode(copy.getsockname())) == str(path)
            and not copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            and _peer(copy) != os.getpid()
        )
    except OSError:
        return False


def _peer(copy: socket.socket) -> int:
    """The ID of the process at the other end; 0 for one that is not seen from this container."""
    pid, _, _ = _CREDENTIALS.unpack(copy.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(pid)
