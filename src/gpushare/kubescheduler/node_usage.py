"""Nodes and the requests of their pods, including assumed ones."""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final

from gpushare.api.json_objects import Json, name_of, spec_of, uid_of
from gpushare.kubescheduler.resources import Amounts, add, allocatable_of, requests_of, subtract

HostPort = tuple[str, str, int]
"""Host IP, protocol, port."""
_ALL_ADDRESSES: Final = "0.0.0.0"  # noqa: S104 - nothing is opened here


@dataclass(slots=True)
class PlacedPod:
    """A pod on a node; ``assumed`` until the API server confirms it."""

    node: str
    asked: Amounts
    ports: frozenset[HostPort]
    assumed: bool
    priority: int = 0


@dataclass(slots=True)
class NodeState:
    """A node and the sum of its pods' requests."""

    node: Json
    allocatable: Amounts
    used: Amounts = field(default_factory=dict)
    pods: set[str] = field(default_factory=set)
    ports: dict[HostPort, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The node's name."""
        return name_of(self.node)

    def has_port(self, wanted: HostPort) -> bool:
        """Whether a pod here uses that host port on that address; ``0.0.0.0`` means all addresses."""
        host, protocol, port = wanted
        return any(
            (protocol, port) == (other_protocol, other_port)
            and (host == other or _ALL_ADDRESSES in (host, other))
            for other, other_protocol, other_port in self.ports
        )


class Occupancy:
    """All nodes. Each change costs O(1); pods of unknown nodes are counted once the node appears."""

    def __init__(self) -> None:
        self._nodes: dict[str, NodeState] = {}
        self._pods: dict[str, PlacedPod] = {}
        self._by_node: dict[str, set[str]] = {}
        self._priorities: Counter[int] = Counter()

    def __iter__(self) -> Iterator[NodeState]:
        return iter(self._nodes.values())

    def __len__(self) -> int:
        return len(self._nodes)

    def node(self, name: str) -> NodeState | None:
        """The node, if it is known."""
        return self._nodes.get(name)

    def set_node(self, node: Json) -> None:
        """A node is new or has changed."""
        name = name_of(node)
        known = self._nodes.get(name)
        if known is not None:
            known.node = node
            known.allocatable = allocatable_of(node)
            return
        state = self._nodes[name] = NodeState(node, allocatable_of(node))
        for uid in self._by_node.get(name, ()):
            _enter(state, uid, self._pods[uid])

    def remove_node(self, name: str) -> None:
        """A node is gone."""
        self._nodes.pop(name, None)

    def place(self, pod: Json, node: str = "", *, assumed: bool = False) -> None:
        """Count a pod on ``node`` (by default its ``spec.nodeName``), and on no other."""
        uid = uid_of(pod)
        self.remove(uid)
        placed = PlacedPod(
            node or str(spec_of(pod)["nodeName"]),
            requests_of(pod),
            host_ports_of(pod),
            assumed,
            priority_of(pod),
        )
        self._pods[uid] = placed
        self._priorities[placed.priority] += 1
        self._by_node.setdefault(placed.node, set()).add(uid)
        state = self._nodes.get(placed.node)
        if state is not None:
            _enter(state, uid, placed)

    def remove(self, uid: str) -> bool:
        """Stop counting the pod; returns whether it was counted."""
        placed = self._pods.pop(uid, None)
        if placed is None:
            return False
        self._priorities[placed.priority] -= 1
        if not self._priorities[placed.priority]:
            del self._priorities[placed.priority]
        there = self._by_node[placed.node]
        there.discard(uid)
        if not there:
            del self._by_node[placed.node]
        state = self._nodes.get(placed.node)
        if state is not None and uid in state.pods:
            _leave(state, uid, placed)
        return True

    def without_lesser(self, state: NodeState, priority: int) -> NodeState | None:
        """The node without its pods below ``priority``; ``None`` if it has none."""
        lesser = self.lesser(state, priority)
        return self.without(state, lesser) if lesser else None

    def any_below(self, priority: int) -> bool:
        """Whether any pod has a lower priority."""
        return any(one < priority for one in self._priorities)

    def lesser(self, state: NodeState, priority: int) -> list[str]:
        """The UIDs of the node's pods below ``priority``."""
        return [uid for uid in state.pods if self._pods[uid].priority < priority]

    def without(self, state: NodeState, uids: Collection[str]) -> NodeState:
        """The node without these pods."""
        emptied = NodeState(
            state.node, state.allocatable, dict(state.used), set(state.pods), dict(state.ports)
        )
        for uid in uids:
            _leave(emptied, uid, self._pods[uid])
        return emptied

    def forget(self, uid: str) -> bool:
        """Stop counting the pod, unless the API server has confirmed it."""
        return self.is_assumed(uid) and self.remove(uid)

    def is_assumed(self, uid: str) -> bool:
        """Whether the pod is assumed: counted, but not confirmed yet."""
        placed = self._pods.get(uid)
        return placed is not None and placed.assumed


def priority_of(pod: Json) -> int:
    """The pod's priority, set by the API server from its class."""
    return int(spec_of(pod).get("priority") or 0)


def host_ports_of(pod: Json) -> frozenset[HostPort]:
    """The host ports that the pod requests."""
    spec = spec_of(pod)
    sidecars = [one for one in spec.get("initContainers") or () if one.get("restartPolicy") == "Always"]
    return frozenset(
        (port.get("hostIP") or _ALL_ADDRESSES, port.get("protocol") or "TCP", int(port["hostPort"]))
        for container in (*(spec.get("containers") or ()), *sidecars)
        for port in container.get("ports") or ()
        if port.get("hostPort")
    )


def _enter(state: NodeState, uid: str, placed: PlacedPod) -> None:
    state.pods.add(uid)
    add(state.used, placed.asked)
    for port in placed.ports:
        state.ports[port] = state.ports.get(port, 0) + 1


def _leave(state: NodeState, uid: str, placed: PlacedPod) -> None:
    state.pods.discard(uid)
    subtract(state.used, placed.asked)
    for port in placed.ports:
        state.ports[port] -= 1
        if not state.ports[port]:
            del state.ports[port]
