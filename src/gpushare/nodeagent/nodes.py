"""The agent's own node as the watch shows it, with what it says of its software."""

import msgspec

from gpushare.model.objects import Node, NodeStatus
from gpushare.nodeagent.container_runtime import Reported


class NodeInfo(msgspec.Struct, rename="camel", gc=False):
    """``status.nodeInfo``: versions as the kubelet writes them."""

    container_runtime_version: str = ""
    kubelet_version: str = ""


class ReportingStatus(NodeStatus, rename="camel", gc=False):
    """``status`` of a node, with its software."""

    node_info: NodeInfo | None = None


class ReportingNode(Node, gc=False):
    """A node, with its software."""

    status: ReportingStatus = msgspec.field(default_factory=ReportingStatus)

    @property
    def reported(self) -> Reported:
        """Its container runtime and kubelet."""
        info = self.status.node_info or NodeInfo()
        return Reported(info.container_runtime_version, info.kubelet_version)


def decode_reporting_node(raw: bytes) -> tuple[str, ReportingNode]:
    """Name and node from JSON text; raises ``msgspec.ValidationError`` on a wrong shape."""
    node = _NODE.decode(raw)
    return node.metadata.name, node


_NODE = msgspec.json.Decoder(ReportingNode)
