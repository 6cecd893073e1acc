"""Which nodes a pod wants, as its manifest says: node selector and required node affinity. Nothing is said of taints here."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from gpushare.model.json_objects import Json
from gpushare.model.objects import Node, Pod, PodSpec


class SelectingSpec(PodSpec, rename="camel", gc=False):
    """``spec`` with the labels that its node must have, and its affinity as it stands."""

    node_selector: dict[str, str] | None = None
    affinity: Any = None


class SelectingPod(Pod, rename="camel", gc=False):
    """A pod that says which nodes it wants."""

    spec: SelectingSpec = msgspec.field(default_factory=SelectingSpec)


class Wanted:
    """The nodes that pods of one selector want, by name. Looked at one by one: of thousands few are asked about."""

    def __init__(self, asks: Json, nodes: "Mapping[str, Node]") -> None:
        self._asks = asks
        self._nodes = nodes
        self._known: dict[str, bool] = {}

    def __contains__(self, name: object) -> bool:
        from gpushare.intree.matching import wants_node

        if name not in self._known:
            node = self._nodes.get(str(name))
            self._known[str(name)] = node is not None and wants_node(self._asks, _as_json(node))
        return self._known[str(name)]


def wanted_by_each(pods: "Iterable[SelectingPod]", nodes: "Iterable[Node]") -> "dict[str, Wanted]":
    """Which of ``nodes`` those of ``pods`` (``namespace/name``) want that do not want every one. Pods of one template share theirs."""
    by_name = {node.metadata.name: node for node in nodes}
    found: dict[str, Wanted] = {}
    by_wish: dict[bytes, Wanted] = {}
    for pod in pods:
        asks = _asks(pod)
        if asks is not None:
            wish = msgspec.json.encode(asks)
            if wish not in by_wish:
                by_wish[wish] = Wanted(asks, by_name)
            found[pod.key] = by_wish[wish]
    return found


def wanted_by(pod: SelectingPod, nodes: Iterable[Node]) -> "set[str]":
    """The names of those of ``nodes`` that the pod wants."""
    asks = _asks(pod)
    if asks is None:
        return {node.metadata.name for node in nodes}
    # Few select, and the plugin starts without it.
    from gpushare.intree.matching import wants_node

    return {node.metadata.name for node in nodes if wants_node(asks, _as_json(node))}


def _asks(pod: SelectingPod) -> "Json | None":
    """What the pod says of nodes; ``None`` where that is nothing."""
    spec = pod.spec
    affinity = spec.affinity.get("nodeAffinity") if isinstance(spec.affinity, dict) else None
    if not spec.node_selector and not affinity:
        return None
    return {"spec": {"nodeSelector": spec.node_selector, "affinity": {"nodeAffinity": affinity}}}


def _as_json(node: Node) -> Json:
    return {"metadata": {"name": node.metadata.name, "labels": node.metadata.labels}}
