"""The names of a node agent's sockets in the kubelet's folder.

Each process has its own, so that two never remove each other's.
"""

import time
from typing import Final

#: Prefix of the socket at which other agents find this one.
PRESENCE: Final = "gpushare-agent-"
SUFFIX: Final = ".sock"
#: The kubelet's folder of plugins, among them DRA drivers, next to that of device plugins.
PLUGINS_REGISTRY: Final = "plugins_registry"


def new_generation() -> int:
    """When this process was started, in ns since the node was: greater than that of every agent before it.

    The node's uptime, as the wall clock may be set back.
    """
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def socket_name(stem: str, generation: int) -> str:
    """The file name of one agent's socket; ``stem`` names its purpose."""
    return f"{stem}{generation:016x}{SUFFIX}"


def generation_of(name: str) -> int | None:
    """The generation of the agent with this socket; ``None`` for other files."""
    try:
        return int(name.removeprefix(PRESENCE).removesuffix(SUFFIX), 16)
    except ValueError:
        return None
