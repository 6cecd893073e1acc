"""Warns of containers whose share of a GPU is smaller than a CUDA context, from annotations of pod and nodes."""

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

#: Nodes that are read for a pending pod.
_MAX_NODES: Final = 100

Json = dict[str, Any]


def too_small(kubectl: Kubectl, pod: Json) -> "list[str]":
    """A warning for each container of the pod whose share is too small; for a pending pod, if it is too small on every measured node.

    Empty also where that is unknown because nodes cannot be read or annotations are malformed. Nodes are read only for small shares.
    Raises ``KubectlMissing``.
    """
    node = pod["spec"].get("nodeName", "")
    try:
        return _on_its_node(kubectl, node, pod) if node else _on_any_node(kubectl, pod)
    except (ModelError, msgspec.DecodeError):
        return []


def _on_its_node(kubectl: Kubectl, node: str, pod: Json) -> "list[str]":
    annotations = pod["metadata"].get("annotations") or {}
    # Records of other schedulers, which need the node to be understood, are not checked.
    allocation = read_allocation(annotations, None)
    if allocation is None or not can_be_too_small(
        share.mib for shares in allocation.containers.values() for share in shares
    ):
        return []
    nodes = _read(kubectl, nodes_path(node))
    return too_small_there(nodes[0], allocation) if nodes else []


def _on_any_node(kubectl: Kubectl, pod: Json) -> "list[str]":
    request = request_of(decode_pod(pod))
    if request is None or not can_be_too_small(_least_mib(request)):
        return []
    return too_small_anywhere(_read(kubectl, f"/api/v1/nodes?limit={_MAX_NODES}"), request)


def _least_mib(request: Request) -> "list[int]":
    """Lower bound of each container's memory per GPU; the node's unit is not known yet."""
    return [request.part_of(container) * MemoryUnit.MIB_128.mib for container in request.containers]


def _read(kubectl: Kubectl, path: str) -> "list[NodeDevices]":
    with kubectl.start(path) as call:
        (answer,) = call.outcomes()
    if not isinstance(answer, bytes):
        return []
    body: Json = json.loads(answer)
    nodes = []
    for item in body.get("items", [body]) or ():
        try:
            devices = node_devices(decode_node(item))
        except (ModelError, msgspec.DecodeError):
            continue
        if devices is not None:
            nodes.append(devices)
    return nodes
