"""The driver's device nodes in the agent's own ``/dev``.

The driver's library opens ``/dev/nvidia*``. A privileged container has the device nodes that existed when it was started; those of
a driver that was installed later are only in the host's ``/dev``, which is visible under the host's root.
"""

import logging
import re
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

_NODES: Final = re.compile(r"nvidia\d+|nvidiactl|nvidia-(caps|modeset|uvm|uvm-tools)|dxg")


def link_device_nodes(root: Path, dev: Path = Path("/dev")) -> None:
    """Link every device node of the driver that is missing in ``dev`` to that under ``root``; never raises."""
    if root == Path("/"):
        return
    try:
        there = [path for path in (root / "dev").iterdir() if _NODES.fullmatch(path.name)]
    except OSError:
        return
    for node in there:
        link = dev / node.name
        try:
            if link.is_symlink() and not link.exists():
                link.unlink()
            if not link.exists():
                link.symlink_to(node)
                logger.info("%s is %s", link, node)
        except OSError as error:
            logger.warning("cannot link %s to %s: %s", link, node, error)
