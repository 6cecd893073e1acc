"""Whether a node holds containers to their share of a GPU, by what stands on pod and node: where no scheduler tells it."""

from collections.abc import Mapping

import msgspec

from gpushare.inspect.kubectl import Kubectl
from gpushare.inspect.listing import nodes_path
from gpushare.model.device import node_devices
from gpushare.model.errors import ModelError
from gpushare.model.holding import not_held
from gpushare.model.objects import Node
from gpushare.model.wire import read_allocation


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
