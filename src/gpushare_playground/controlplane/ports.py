"""Free ports that remain free: outside the range from which the kernel takes the ports of outgoing connections."""

import errno
import secrets
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Final

_FROM, _TO = 15000, 32768
_TRIES: Final = 2000
LOOPBACK: Final = "127.0.0.1"
#: Bound, but never listened on.
_ANY: Final = "0.0.0.0"


def free_ports(count: int) -> list[int]:
    """``count`` different ports, free on any IPv4 address: nodes of playgrounds have their own loopback addresses.

    A component that is restarted must find its port free, so ports are below the kernel's ephemeral range.
    Raises ``OSError`` if not enough are free.
    """
    ephemeral = _ephemeral_start()
    end = min(_TO, ephemeral) if ephemeral > _FROM + count else _TO
    ports: list[int] = []
    with ExitStack() as held:
        for _ in range(_TRIES):
            if len(ports) == count:
                return ports
            port = _FROM + secrets.randbelow(end - _FROM)
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            held.callback(listener.close)
            try:
                listener.bind((_ANY, port))
            except OSError as error:
                if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise
                continue
            ports.append(port)
    raise OSError(errno.EADDRINUSE, f"no {count} free ports from {_FROM} to {end}")


def _ephemeral_start() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _TO
