"""The driver's device nodes on the host, for containers that get their GPU through NVIDIA's runtime.

Its legacy mode adds device nodes behind the container runtime's back. The runtime then rewrites the container's device rules without
them when systemd is reloaded or the kubelet updates the container (a static CPU manager does), and the container loses its GPU. What the
kubelet passes on is known to the runtime. A CDI spec is, too.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from gpushare.nodeagent.allocate.container_response import DeviceNode

#: Device nodes that every container with a GPU uses, where the host has them.
_OF_ALL: Final = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")


#: In /proc/devices: what the access rights of MIG instances are.
_CAPABILITIES: Final = re.compile(r"^ *(\d+) nvidia-caps$", re.MULTILINE)


def capability_major(devices: Path = Path("/proc/devices")) -> int | None:
    """The major number of the device nodes in ``/dev/nvidia-caps``; ``None`` if the kernel has none."""
    try:
        match = _CAPABILITIES.search(devices.read_text())
    except OSError:
        return None
    return None if match is None else int(match[1])


def host_devices(minors: Iterable[int], dev: Path) -> tuple[DeviceNode, ...]:
    """The device nodes of the GPUs with these minor numbers; ``dev`` is where this process sees the host's ``/dev``."""
    names = (*(f"nvidia{minor}" for minor in minors), *_OF_ALL)
    # A container with a device node that the host lacks would not start.
    return tuple(
        DeviceNode(f"/dev/{name}", f"/dev/{name}") for name in names if (dev / name).is_char_device()
    )
