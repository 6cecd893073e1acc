"""Whether the containers of a pod have less of a GPU than a CUDA context takes, by what stands on pod and nodes."""

import json
from typing import Any, Final

import msgspec

from gpushare.api.allocation.annotations import read_allocation
from gpushare.api.errors import ModelError
from gpushare.api.node.context_cost import can_be_too_small, too_small_anywhere, too_small_there
from gpushare.api.node.device import NodeDevices, node_devices
from gpushare.api.objects import decode_node, decode_pod
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.request import Request, request_of
from gpushare.inspect.sources.kubectl import Kubectl
from gpushare.inspect.sources.paths import nodes_path

#: Nodes that are looked at for a pod that waits.
_MOST_NODES: Final = 100

Json = dict[str, Any]


def too_small(kubectl: Kubectl, pod: Json) -> "list[str]":
    """What is to be said of the pod's containers, one by one; of a pod that waits, where no measured node would do.

    Empty also where nobody knows: nodes cannot be read, or what is written on them or on the pod is not understood. Nodes are read
    where a share is small. Raises ``KubectlMissing``.
    """
    node = pod["spec"].get("nodeName", "")
    try:
        return _there(kubectl, node, pod) if node else _anywhere(kubectl, pod)
    except (ModelError, msgspec.DecodeError):
        return []


def _there(kubectl: Kubectl, node: str, pod: Json) -> "list[str]":
    annotations = pod["metadata"].get("annotations") or {}
    # Of a record of another scheduler, which only the node explains, nothing is said.
    known = read_allocation(annotations, None)
    if known is None or not can_be_too_small(
        share.mib for shares in known.containers.values() for share in shares
    ):
        return []
    found = _read(kubectl, nodes_path(node))
    return too_small_there(found[0], known) if found else []


def _anywhere(kubectl: Kubectl, pod: Json) -> "list[str]":
    request = request_of(decode_pod(pod))
    if request is None or not can_be_too_small(_least_mib(request)):
        return []
    return too_small_anywhere(_read(kubectl, f"/api/v1/nodes?limit={_MOST_NODES}"), request)


def _least_mib(request: Request) -> "list[int]":
    """What containers get of each GPU at the least, as the unit is not known yet."""
    return [request.part_of(one) * MemoryUnit.MIB_128.mib for one in request.containers]


def _read(kubectl: Kubectl, path: str) -> "list[NodeDevices]":
    with kubectl.start(path) as begun:
        (answer,) = begun.outcomes()
    if not isinstance(answer, bytes):
        return []
    body: Json = json.loads(answer)
    found = []
    for one in body.get("items", [body]) or ():
        try:
            devices = node_devices(decode_node(one))
        except (ModelError, msgspec.DecodeError):
            continue
        if devices is not None:
            found.append(devices)
    return found
