"""What one running pod uses of its GPUs now, from its node's agent."""

import msgspec

from gpushare.api.errors import ModelError
from gpushare.api.node.device import node_devices
from gpushare.api.objects import Node
from gpushare.inspect.errors import InspectError
from gpushare.inspect.sources.kubectl import Kubectl
from gpushare.inspect.sources.live_usage import ports_of, read
from gpushare.inspect.sources.paths import nodes_path

_NODE = msgspec.json.Decoder(Node)


def used_now(kubectl: Kubectl, pod: str, node_name: str) -> str:
    """Memory in use by ``pod`` (``namespace/name``) on its node, for people; empty where that is unknown."""
    try:
        with kubectl.start(nodes_path(node_name)) as call:
            (answer,) = call.outcomes()
        if not isinstance(answer, bytes):
            return ""
        node = _NODE.decode(answer)
        devices = node_devices(node)
        use = read(kubectl, [node_name], ports_of([node]))
    except (ModelError, msgspec.DecodeError, InspectError):
        return ""
    labels = {} if devices is None else {device.uuid: device.label for device in devices.devices}
    return ", ".join(
        f"{amount.mib:.0f} MiB of GPU {labels[uuid]}"
        for (key, uuid), amount in use.of.items()
        if key == pod and uuid in labels and amount.mib is not None
    )
