"""Which nodes a pod wants, as its manifest says: node selector and required node affinity. Nothing is said of taints here."""

from collections.abc import Iterable
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


def wanted_by(pod: SelectingPod, nodes: Iterable[Node]) -> "set[str]":
    """The names of those of ``nodes`` that the pod wants."""
    spec = pod.spec
    affinity = spec.affinity.get("nodeAffinity") if isinstance(spec.affinity, dict) else None
    if not spec.node_selector and not affinity:
        return {node.metadata.name for node in nodes}
    # Few select, and the plugin starts without it.
    from gpushare.intree.matching import wants_node

    asks: Json = {"spec": {"nodeSelector": spec.node_selector, "affinity": {"nodeAffinity": affinity}}}
    return {node.metadata.name for node in nodes if wants_node(asks, _as_json(node))}


def _as_json(node: Node) -> Json:
    return {"metadata": {"name": node.metadata.name, "labels": node.metadata.labels}}
