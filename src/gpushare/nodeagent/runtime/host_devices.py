"""The driver's device nodes on the host, for containers that get their GPU through NVIDIA's runtime.

Its legacy mode adds device nodes behind the container runtime's back. The runtime then rewrites the container's device rules without
them when systemd is reloaded or the kubelet updates the container (a static CPU manager does), and the container loses its GPU. What the
kubelet passes on is known to the runtime. A CDI spec is, too.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from gpushare.nodeagent.allocate.container_response import DeviceNode

#: Device nodes that every container with a GPU uses, where the host has them.
_OF_ALL: Final = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")


def host_devices(minors: Iterable[int], dev: Path) -> tuple[DeviceNode, ...]:
    """The device nodes of the GPUs with these minor numbers; ``dev`` is where this process sees the host's ``/dev``."""
    names = (*(f"nvidia{minor}" for minor in minors), *_OF_ALL)
    # A container with a device node that the host lacks would not start.
    return tuple(
        DeviceNode(f"/dev/{name}", f"/dev/{name}") for name in names if (dev / name).is_char_device()
    )
