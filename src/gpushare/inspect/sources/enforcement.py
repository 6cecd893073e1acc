"""Whether a node enforces GPU shares, from annotations of pod and node; used where the scheduler does not report it."""

from collections.abc import Mapping

import msgspec

from gpushare.api.allocation.annotations import read_allocation
from gpushare.api.errors import ModelError
from gpushare.api.node.device import node_devices
from gpushare.api.node.enforcement_text import not_held
from gpushare.api.objects import Node
from gpushare.inspect.sources.kubectl import Kubectl
from gpushare.inspect.sources.paths import nodes_path


def why_not_enforced(kubectl: Kubectl, node: str, annotations: Mapping[str, str]) -> str:
    """Why ``node`` does not enforce the share recorded in the pod's ``annotations``.

    Empty where it does, and where that is unknown because the node cannot be read or an annotation is malformed.
    Raises ``KubectlMissing``.
    """
    with kubectl.start(nodes_path(node)) as call:
        (answer,) = call.outcomes()
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
