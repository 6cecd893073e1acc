"""Which nodes a pod wants, as its manifest says: node selector and required node affinity. Nothing is said of taints here."""

from collections.abc import Iterable, Mapping

import msgspec

from gpushare.api.objects import Node, Pod

Labels = Mapping[str, Mapping[str, str]]
"""Labels of nodes by the nodes' names."""


class WantedNodes:
    """The nodes that pods of one wish want, by name. Looked at one by one: of thousands few are asked about."""

    def __init__(self, wish: bytes, labels: Labels) -> None:
        self._asks = {"spec": msgspec.json.decode(wish)}
        self._labels = labels
        self._known: dict[str, bool] = {}

    def __contains__(self, name: object) -> bool:
        # Few select, and the kubectl plugin starts without it.
        from gpushare.kubescheduler.node_affinity import wants_node

        known = self._known.get(str(name))
        if known is None:
            known = name in self._labels and wants_node(
                self._asks, {"metadata": {"name": name, "labels": self._labels[str(name)]}}
            )
            self._known[str(name)] = known
        return known


class Wishes:
    """What pods want of the nodes with these ``labels``. Pods of one template share their answer."""

    def __init__(self, labels: Labels) -> None:
        self._labels = labels
        self._known: dict[bytes, WantedNodes] = {}

    def of(self, wish: bytes) -> "WantedNodes | None":
        """The nodes that a pod of this wish (``wish_of``) wants; ``None``: all of them, whatever they are called."""
        if not wish:
            return None
        if wish not in self._known:
            self._known[wish] = WantedNodes(wish, self._labels)
        return self._known[wish]


def wish_of(pod: Pod) -> bytes:
    """What the pod says of nodes, the same for all of one template; empty where it takes every one."""
    selector, affinity = pod.spec.node_selector, pod.spec.affinity
    if not selector and (affinity is None or affinity.required is None):
        return b""
    return msgspec.json.encode({"nodeSelector": selector, "affinity": affinity})


def labels_of_each(nodes: Iterable[Node]) -> Labels:
    """As ``Wishes`` takes them."""
    return {node.metadata.name: node.metadata.labels or {} for node in nodes}


def wanted_by_each(pods: Iterable[Pod], wishes: Wishes) -> "dict[str, WantedNodes]":
    """The nodes that those of ``pods`` (``namespace/name``) want that do not want every one."""
    each = ((pod.key, wishes.of(wish_of(pod))) for pod in pods)
    return {key: wanted for key, wanted in each if wanted is not None}


def wanted_by(pod: Pod, nodes: Iterable[Node]) -> "set[str]":
    """The names of those of ``nodes`` that the pod wants."""
    labels = labels_of_each(nodes)
    wanted = Wishes(labels).of(wish_of(pod))
    return set(labels) if wanted is None else {name for name in labels if name in wanted}
