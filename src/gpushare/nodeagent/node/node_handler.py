"""The agent's own node as the watch shows it, with the versions of its software."""

from collections.abc import Callable

import msgspec

from gpushare.api import names
from gpushare.api.objects import Node, NodeStatus
from gpushare.nodeagent.node.condition import Condition
from gpushare.nodeagent.runtime.selection import Reported


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
    def ready(self) -> Condition | None:
        """Our condition on the node object."""
        ready = self.condition(names.CONDITION_READY)
        return None if ready is None else Condition(ready.status, ready.reason, ready.message)

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


class NodeHandler:
    """Feeds one node to ``on_node``; ``None``: there is no such node."""

    def __init__(self, on_node: Callable[[ReportingNode | None], None]) -> None:
        self._on_node = on_node

    def synced(self) -> None:
        """The first list is complete."""

    def upsert(self, item: ReportingNode) -> None:
        """The node was added or changed."""
        self._on_node(item)

    def remove(self, key: str, last: ReportingNode) -> None:
        """The node is gone."""
        self._on_node(None)
