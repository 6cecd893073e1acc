"""Whether a node holds containers to their share of a GPU, by what stands on pod and node: where no scheduler tells it."""

from collections.abc import Mapping

import msgspec

from gpushare.api.allocation.annotations import read_allocation
from gpushare.api.errors import ModelError
from gpushare.api.node.device import node_devices
from gpushare.api.node.enforcement_text import not_held
from gpushare.api.objects import Node
from gpushare.inspect.sources.kubectl import Kubectl
from gpushare.inspect.sources.paths import nodes_path


def why_not_held(kubectl: Kubectl, node: str, annotations: Mapping[str, str]) -> str:
    """Why containers that are given the share that ``annotations`` of their pod name on ``node`` now are not held to it.

    Empty where they are, and where nobody knows: the node cannot be read, or what is written on it or the pod is not understood.
    Raises ``KubectlMissing``.
    """
    with kubectl.start(nodes_path(node)) as begun:
        (answer,) = begun.outcomes()
    if not isinstance(answer, bytes):
        return ""
    try:
        devices = node_devices(_NODE.decode(answer))
        if devices is None:
            return ""
        allocation = read_allocation(annotations, devices)
    except (ModelError, msgspec.DecodeError):
        return ""
    return "" if allocation is None else not_held(devices, allocation.gpus)


_NODE = msgspec.json.Decoder(Node)
