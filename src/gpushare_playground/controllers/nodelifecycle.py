"""Node lifecycle: taints from conditions, and an event for a new node, as in kube-controller-manager.

Source: kubernetes 1.36 ``pkg/controller/nodelifecycle`` and ``pkg/controller/ttl``. Not implemented: leases are not watched,
so a node whose kubelet is gone remains Ready.
"""

from collections.abc import Mapping
from typing import Final

from gpushare.api.objects import ObjectReference
from gpushare.kube.client.errors import ApiError
from gpushare.kube.clock import Clock
from gpushare.kube.event_recorder import Recorder
from gpushare_playground.cache import Cache
from gpushare_playground.objects import (
    NODES,
    Json,
    Objects,
    annotations_of,
    name_of,
    spec_of,
    status_of,
    time_text,
    uid_of,
)

_TTL: Final = "node.alpha.kubernetes.io/ttl"
_PREFIX: Final = "node.kubernetes.io/"
_BY_CONDITION: Final[Mapping[tuple[str, str], str]] = {
    ("Ready", "False"): "not-ready",
    ("Ready", "Unknown"): "unreachable",
    ("MemoryPressure", "True"): "memory-pressure",
    ("DiskPressure", "True"): "disk-pressure",
    ("PIDPressure", "True"): "pid-pressure",
    ("NetworkUnavailable", "True"): "network-unavailable",
}
_OURS: Final = frozenset(f"{_PREFIX}{name}" for name in (*_BY_CONDITION.values(), "unschedulable"))


class NodeLifecycle:
    """Reconciles Nodes."""

    name = "nodelifecycle"

    def __init__(self, objects: Objects, nodes: Cache, recorder: Recorder, clock: Clock) -> None:
        self._objects = objects
        self._nodes = nodes
        self._recorder = recorder
        self._clock = clock
        self._greeted: set[str] = set()

    async def reconcile(self, key: str) -> float | None:
        """Taint the node at ``key`` according to its conditions and ``spec.unschedulable``."""
        node = self._nodes.get(key)
        if node is None:
            self._greeted.discard(key)
            return None
        if key not in self._greeted:
            self._greeted.add(key)
            self._greet(node)
        change: Json = {}
        taints = spec_of(node).get("taints") or []
        wanted = taints_of(node, time_text(self._clock.time_ns()))
        if {_identity(taint) for taint in wanted} != {_identity(taint) for taint in taints}:
            change["spec"] = {"taints": wanted or None}
        if _TTL not in annotations_of(node):
            change["metadata"] = {"annotations": {_TTL: "0"}}
        if not change:
            return None
        if "spec" in change:
            # A list is replaced as a whole: taints of others must not get lost.
            change.setdefault("metadata", {})["resourceVersion"] = node["metadata"]["resourceVersion"]
        try:
            await self._objects.merge(NODES, node, change)
        except ApiError as error:
            if not (error.conflict or error.not_found):
                raise
            # A newer version is on its way from the watch.
        return None

    def _greet(self, node: Json) -> None:
        name = name_of(node)
        note = f"Node {name} event: Registered Node {name} in Controller"
        regarding = ObjectReference("Node", name, "", uid_of(node))
        self._recorder.record(
            regarding, kind="Normal", reason="RegisteredNode", action="RegisteredNode", note=note
        )


def taints_of(node: Json, now: str) -> list[Json]:
    """The taints that the node should have: those of others unchanged, ours according to its state."""
    named = {
        taint
        for one in status_of(node).get("conditions") or ()
        if (taint := _BY_CONDITION.get((str(one.get("type")), str(one.get("status")))))
    }
    if spec_of(node).get("unschedulable"):
        named.add("unschedulable")
    wanted = {f"{_PREFIX}{name}" for name in named}
    others = [
        one
        for one in spec_of(node).get("taints") or ()
        if one.get("key") not in _OURS or one.get("effect") != "NoSchedule" or one["key"] in wanted
    ]
    existing = {one["key"] for one in others if one.get("effect") == "NoSchedule"}
    return [
        *others,
        *({"key": key, "effect": "NoSchedule", "timeAdded": now} for key in sorted(wanted - existing)),
    ]


def _identity(taint: Json) -> tuple[str, str]:
    return str(taint.get("key")), str(taint.get("effect"))
