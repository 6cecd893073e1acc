"""The nodes that match a pod's node selector and required node affinity. Taints are not considered."""

from collections.abc import Iterable, Mapping

import msgspec

from gpushare.api.objects import Node, Pod

Labels = Mapping[str, Mapping[str, str]]
"""Labels by node name."""


class WantedNodes:
    """The matching nodes of pods with one selection, by name; evaluated lazily, as few of thousands are queried."""

    def __init__(self, wish: bytes, labels: Labels) -> None:
        self._asks = {"spec": msgspec.json.decode(wish)}
        self._labels = labels
        self._known: dict[str, bool] = {}

    def __contains__(self, name: object) -> bool:
        # Few pods select nodes, and the kubectl plugin starts faster without it.
        from gpushare.kubescheduler.node_affinity import wants_node

        known = self._known.get(str(name))
        if known is None:
            known = name in self._labels and wants_node(
                self._asks, {"metadata": {"name": name, "labels": self._labels[str(name)]}}
            )
            self._known[str(name)] = known
        return known


class Wishes:
    """Matches pods against nodes with these ``labels``. Pods of one template share the result."""

    def __init__(self, labels: Labels) -> None:
        self._labels = labels
        self._known: dict[bytes, WantedNodes] = {}

    def of(self, wish: bytes) -> "WantedNodes | None":
        """The matching nodes for a selection (``wish_of``); ``None``: all nodes."""
        if not wish:
            return None
        if wish not in self._known:
            self._known[wish] = WantedNodes(wish, self._labels)
        return self._known[wish]


def wish_of(pod: Pod) -> bytes:
    """The pod's node selection, equal for all pods of one template; empty if it selects every node."""
    selector, affinity = pod.spec.node_selector, pod.spec.affinity
    if not selector and (affinity is None or affinity.required is None):
        return b""
    return msgspec.json.encode({"nodeSelector": selector, "affinity": affinity})


def labels_of_each(nodes: Iterable[Node]) -> Labels:
    """Node labels for ``Wishes``."""
    return {node.metadata.name: node.metadata.labels or {} for node in nodes}


def wanted_by_each(pods: Iterable[Pod], wishes: Wishes) -> "dict[str, WantedNodes]":
    """The matching nodes of those ``pods`` (``namespace/name``) that select nodes."""
    each = ((pod.key, wishes.of(wish_of(pod))) for pod in pods)
    return {key: wanted for key, wanted in each if wanted is not None}


def wanted_by(pod: Pod, nodes: Iterable[Node]) -> "set[str]":
    """The names of the matching ``nodes``."""
    labels = labels_of_each(nodes)
    wanted = Wishes(labels).of(wish_of(pod))
    return set(labels) if wanted is None else {name for name in labels if name in wanted}
