"""Paths of the API server's lists, for ``kubectl get --raw``."""

import re
from typing import Final

from gpushare.api import names
from gpushare.inspect.errors import UnknownNode
from gpushare.inspect.sources.kubectl import Kubectl, Round

#: Pods per page. Pages are large because each costs a kubectl process (50 ms and more); the API server itself reads etcd in pages of 10,000.
PODS_PER_PAGE: Final = 5000

CLAIMS_PATH: Final = "/apis/resource.k8s.io/v1/resourceclaims"

_NODE_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)
_UNFINISHED: Final = "status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed"


def begin(kubectl: Kubectl, node: str | None) -> Round:
    """Start reading the nodes and the first page of pods in parallel.

    Raises ``UnknownNode`` and ``KubectlMissing``.
    """
    return kubectl.start(nodes_path(node), pods_path(node))


def nodes_path(node: str | None) -> str:
    """The path of all nodes, or of one. Raises ``UnknownNode`` for an invalid node name."""
    if node is None:
        return "/api/v1/nodes"
    if not _NODE_NAME.fullmatch(node):
        raise unknown_node(node)
    return f"/api/v1/nodes/{node}"


def pods_path(node: str | None, after: str = "") -> str:
    """The path of one page of unfinished pods, of one node or of all.

    ``after`` is the ``continue`` token of the previous page.
    """
    path = f"/api/v1/pods?limit={PODS_PER_PAGE}&fieldSelector={_UNFINISHED}"
    if node is not None:
        path += f"%2Cspec.nodeName%3D{node}"
    if after:
        from urllib.parse import quote  # few clusters have a second page

        path += f"&continue={quote(after, safe='')}"
    return path


def unknown_node(node: str) -> UnknownNode:
    """The error for a node that does not exist, or shares no GPU memory."""
    return UnknownNode(
        "",
        f'node "{node}" not found or has no {names.GPU_MEM}; '
        "`kubectl inspect cgpu` without a name lists the nodes that have it",
    )
