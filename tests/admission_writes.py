"""Writes of different users on pods, bindings and nodes that admission accepts and rejects; see ``admission_cases``.

``Write.says`` is our complete message, empty if the write is accepted. An UPDATE is a merge patch of ``old``; a
CREATE is the object itself. Names: nodes ``n1`` and ``n2``; pods ``bound-n1`` and ``bound-n2`` hold GPU memory there,
``waiting`` requests it, ``plain-n1`` does not; all in namespace ``default``.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gpushare.api import names
from tests.admission_users import (
    ADMIN,
    AGENT_WITHOUT_NODE,
    COLLECTOR,
    KUBELET,
    MIRRORING,
    NAMESAKE,
    NODE_NAME_EXTRA,
    PLAIN_SCHEDULER,
    SCHEDULER,
    User,
    agent_on,
)
from tests.admission_words import JsonObject, box, carried_words

Operation = Literal["CREATE", "UPDATE", "DELETE"]

#: As ``gpushare.api.allocation.annotations`` writes them; admission does not look into them.
RECORD = {
    names.ANN_SHARE: '{"gpus":[{"uuid":"GPU-1","index":0,"mib":3232,"units":3,"of":15}],"containers":{}}',
    names.ANN_MEM_INDEX: "0",
    names.ANN_MEM_POD: "3",
    names.ANN_MEM_DEVICE: "15",
    names.ANN_MEM_ASSIGNED: "false",
    names.ANN_MEM_ASSUME_TIME: "1",
}


def _pod(name: str, node: str, *, gpu: bool = True) -> JsonObject:
    containers = [box(mem="3") if gpu else box(cpu="1")]
    spec: JsonObject = {"containers": containers, "automountServiceAccountToken": False}
    if node:
        spec["nodeName"] = node
    annotations = {"note": "x", **(RECORD if gpu and node else {})}
    metadata = {"name": name, "namespace": "default", "labels": {"app": "x"}, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _node(name: str) -> JsonObject:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {names.LABEL_MODE: "share"},
            "annotations": {names.ANN_DEVICES: '{"devices":[]}', "note": "x"},
        },
    }


#: Objects that exist before each write, by (resource, name).
OBJECTS: Mapping[tuple[str, str], JsonObject] = {
    ("pods", "bound-n1"): _pod("bound-n1", "n1"),
    ("pods", "bound-n2"): _pod("bound-n2", "n2"),
    ("pods", "waiting"): _pod("waiting", ""),
    ("pods", "plain-n1"): _pod("plain-n1", "n1", gpu=False),
    ("nodes", "n1"): _node("n1"),
    ("nodes", "n2"): _node("n2"),
}


@dataclass(frozen=True)
class Write:
    """One write on ``resource`` (with its subresource, as ``pods/status``); ``body``: patch, object or nothing."""

    id: str
    user: User
    operation: Operation
    resource: str
    name: str
    body: JsonObject = field(default_factory=dict)
    says: str = ""

    @property
    def old(self) -> JsonObject | None:
        """The object before the write; ``None`` for CREATE."""
        if self.operation == "CREATE":
            return None
        return copy.deepcopy(OBJECTS[self.resource.partition("/")[0], self.name])

    @property
    def new(self) -> JsonObject | None:
        """The submitted object; ``None`` for DELETE."""
        if self.operation == "DELETE":
            return None
        if self.old is None:
            return copy.deepcopy(self.body)
        merged: JsonObject = _merge(self.old, self.body)
        return merged


def _merge(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge(merged.get(key), value)
    return merged


def _annotate(**annotations: str | None) -> JsonObject:
    return {"metadata": {"annotations": dict(annotations)}}


def _share(value: str | None = "{}") -> JsonObject:
    return _annotate(**{names.ANN_SHARE: value})


def _devices(value: str | None = "{}") -> JsonObject:
    return _annotate(**{names.ANN_DEVICES: value})


def binding(name: str, annotations: Mapping[str, str]) -> JsonObject:
    """A Binding of pod ``name`` to node ``n1``."""
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "namespace": "default", "annotations": dict(annotations)},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    }


def changed_words(*annotations: str) -> str:
    return (
        f"annotations that only gpushare itself writes: {', '.join(annotations)}; do not change them "
        "(to release an allocation, delete the pod)"
    )


NODE_WORDS = (
    f"annotation {names.ANN_DEVICES} is written only by the node agent; do not change it "
    f"(to change what a node offers, set its label {names.LABEL_MODE})"
)
AGENT_POD_WORDS = "the node agent may only change gpushare's annotations of a pod"
AGENT_NODE_WORDS = (
    f"the node agent may only change annotations {names.ANN_DEVICES} and {names.ANN_ISOLATION} "
    f"and label {names.LABEL_DESCRIBED} of its node"
)
AGENT_STATUS_WORDS = (
    f"the node agent may only change condition {names.CONDITION_READY} and the capacity and allocatable of "
    f"{names.GPU_MEM}, {names.GPU_CORE}, {names.GPU_COUNT} and {names.GPU_WHOLE} in its node's status"
)
AGENT_TOKEN_WORDS = (
    f"the node agent's token does not identify its node ({NODE_NAME_EXTRA}): use the token that Kubernetes issues for its pod, "
    "or set the chart's admission.nodeRestriction to never if the cluster's tokens do not contain it"
)


def agent_place_words(node: str, what: str) -> str:
    return f"the node agent of node {node} may only change this node and the pods on it, not {what}"


def agent_verb_words(operation: str, resource: str) -> str:
    return f"the node agent may not {operation} {resource}: it only updates pods and nodes"


N1 = agent_on("n1")
_NEW_POD = {**_pod("fresh", "", gpu=False), "metadata": {"name": "fresh", "namespace": "default"}}
_BOUND = {**_pod("made", "n1"), "metadata": {"name": "made", "namespace": "default"}}
_MIRROR = {
    **_BOUND,
    "metadata": {"name": "made", "namespace": "default", "annotations": {"kubernetes.io/config.mirror": "x"}},
}
_ASSIGNED = _annotate(**{names.ANN_MEM_ASSIGNED: "true", names.ANN_ALSO: None})
_RETRY = _annotate(**{names.ANN_RETRY: "1"})


def _conditions(*kinds: str) -> JsonObject:
    return {"status": {"conditions": [{"type": kind, "status": "True"} for kind in kinds]}}


_COUNT = {"status": {"capacity": {names.GPU_COUNT: "4"}}}

WRITES: tuple[Write, ...] = (
    # --- records on pods
    Write(
        "admin-changes-record", ADMIN, "UPDATE", "pods", "bound-n1", _share(), changed_words(names.ANN_SHARE)
    ),
    Write(
        "admin-removes-record",
        ADMIN,
        "UPDATE",
        "pods",
        "bound-n1",
        _share(None),
        changed_words(names.ANN_SHARE),
    ),
    Write(
        "admin-removes-all-annotations",
        ADMIN,
        "UPDATE",
        "pods",
        "bound-n1",
        {"metadata": {"annotations": None}},
        changed_words(*RECORD),
    ),
    Write("admin-adds-record", ADMIN, "UPDATE", "pods", "waiting", _share(), changed_words(names.ANN_SHARE)),
    Write(
        "admin-adds-record-to-plain",
        ADMIN,
        "UPDATE",
        "pods",
        "plain-n1",
        _share(),
        changed_words(names.ANN_SHARE),
    ),
    Write("admin-asks-for-retry", ADMIN, "UPDATE", "pods", "waiting", _RETRY, changed_words(names.ANN_RETRY)),
    Write(
        "admin-through-status",
        ADMIN,
        "UPDATE",
        "pods/status",
        "bound-n1",
        _share(),
        changed_words(names.ANN_SHARE),
    ),
    Write("admin-repeats-record", ADMIN, "UPDATE", "pods", "bound-n1", _share(RECORD[names.ANN_SHARE])),
    Write("admin-writes-a-note", ADMIN, "UPDATE", "pods", "bound-n1", _annotate(note="y")),
    Write("admin-labels", ADMIN, "UPDATE", "pods", "bound-n1", {"metadata": {"labels": {"app": "y"}}}),
    Write("admin-deletes", ADMIN, "DELETE", "pods", "bound-n1"),
    Write(
        "collector-drops-owner",
        COLLECTOR,
        "UPDATE",
        "pods",
        "bound-n1",
        {"metadata": {"ownerReferences": None}},
    ),
    Write(
        "kubelet-writes-status",
        KUBELET,
        "UPDATE",
        "pods/status",
        "bound-n1",
        {"status": {"phase": "Running"}},
    ),
    Write(
        "kubelet-changes-record",
        KUBELET,
        "UPDATE",
        "pods/status",
        "bound-n1",
        _share(),
        changed_words(names.ANN_SHARE),
    ),
    Write("scheduler-asks-for-retry", SCHEDULER, "UPDATE", "pods", "waiting", _RETRY),
    Write("scheduler-on-another-node", SCHEDULER, "UPDATE", "pods", "bound-n1", _RETRY),
    Write(
        "namesake-asks-for-retry",
        NAMESAKE,
        "UPDATE",
        "pods",
        "waiting",
        _RETRY,
        changed_words(names.ANN_RETRY),
    ),
    # --- bindings
    Write("scheduler-binds", SCHEDULER, "CREATE", "pods/binding", "waiting", binding("waiting", RECORD)),
    Write(
        "plain-scheduler-binds", PLAIN_SCHEDULER, "CREATE", "pods/binding", "waiting", binding("waiting", {})
    ),
    Write(
        "plain-scheduler-binds-with-record",
        PLAIN_SCHEDULER,
        "CREATE",
        "pods/binding",
        "waiting",
        binding("waiting", {names.ANN_SHARE: "{}"}),
        carried_words(names.ANN_SHARE),
    ),
    Write(
        "admin-binds-the-old-way",
        ADMIN,
        "CREATE",
        "bindings",
        "waiting",
        binding("waiting", {names.ANN_MEM_INDEX: "0"}),
        carried_words(names.ANN_MEM_INDEX),
    ),
    # --- pods created with a node
    Write("mirror-pod", MIRRORING, "CREATE", "pods", "made", _MIRROR),
    Write("scheduler-creates-bound", SCHEDULER, "CREATE", "pods", "made", _BOUND),
    Write("scheduler-creates-with-record", SCHEDULER, "CREATE", "pods", "made", _pod("made", "n1")),
    # --- nodes
    Write("admin-changes-devices", ADMIN, "UPDATE", "nodes", "n1", _devices(), NODE_WORDS),
    Write("admin-removes-devices", ADMIN, "UPDATE", "nodes", "n1", _devices(None), NODE_WORDS),
    Write("admin-devices-through-status", ADMIN, "UPDATE", "nodes/status", "n1", _devices(), NODE_WORDS),
    # Pods hold GPU memory on n1: the ledger carries them through the change of mode (docs/architecture.md).
    Write(
        "admin-relabels-mode",
        ADMIN,
        "UPDATE",
        "nodes",
        "n1",
        {"metadata": {"labels": {names.LABEL_MODE: "core_mem"}}},
    ),
    Write("admin-writes-a-note-on-node", ADMIN, "UPDATE", "nodes", "n1", _annotate(note="y")),
    Write("admin-creates-described-node", ADMIN, "CREATE", "nodes", "n3", _node("n3"), NODE_WORDS),
    Write(
        "kubelet-heartbeat", KUBELET, "UPDATE", "nodes/status", "n1", {"status": {"capacity": {"cpu": "8"}}}
    ),
    Write("kubelet-changes-devices", KUBELET, "UPDATE", "nodes/status", "n1", _devices(), NODE_WORDS),
    # --- the node agent
    Write("agent-marks-assigned", N1, "UPDATE", "pods", "bound-n1", _ASSIGNED),
    Write("agent-describes-node", N1, "UPDATE", "nodes", "n1", _devices()),
    Write(
        "agent-describes-node-first",
        N1,
        "UPDATE",
        "nodes",
        "n1",
        {"metadata": {**_devices()["metadata"], "labels": {names.LABEL_DESCRIBED: "true"}}},
    ),
    Write("agent-undescribes-node", N1, "UPDATE", "nodes", "n1", _devices(None)),
    Write(
        "agent-marks-its-node",
        N1,
        "UPDATE",
        "nodes",
        "n1",
        {"metadata": {"labels": {names.LABEL_DESCRIBED: "true"}}},
    ),
    Write("agent-counts", N1, "UPDATE", "nodes/status", "n1", _COUNT),
    Write(
        "agent-says-that-it-shares", N1, "UPDATE", "nodes/status", "n1", _conditions(names.CONDITION_READY)
    ),
    Write(
        "agent-on-another-nodes-pod",
        N1,
        "UPDATE",
        "pods",
        "bound-n2",
        _ASSIGNED,
        agent_place_words("n1", "pod default/bound-n2 on node n2"),
    ),
    Write(
        "agent-on-a-waiting-pod",
        N1,
        "UPDATE",
        "pods",
        "waiting",
        _share(),
        agent_place_words("n1", "pod default/waiting on no node"),
    ),
    Write(
        "agent-on-another-node", N1, "UPDATE", "nodes", "n2", _devices(), agent_place_words("n1", "node n2")
    ),
    Write(
        "agent-counts-on-another-node",
        N1,
        "UPDATE",
        "nodes/status",
        "n2",
        _COUNT,
        agent_place_words("n1", "node n2"),
    ),
    Write(
        "agent-without-node-on-pod",
        AGENT_WITHOUT_NODE,
        "UPDATE",
        "pods",
        "bound-n1",
        _ASSIGNED,
        AGENT_TOKEN_WORDS,
    ),
    Write("agent-without-node", AGENT_WITHOUT_NODE, "UPDATE", "nodes", "n1", _devices(), AGENT_TOKEN_WORDS),
    Write("agent-writes-a-note", N1, "UPDATE", "pods", "bound-n1", _annotate(note="y"), AGENT_POD_WORDS),
    Write(
        "agent-labels-a-pod",
        N1,
        "UPDATE",
        "pods",
        "bound-n1",
        {"metadata": {"labels": {"app": "y"}}},
        AGENT_POD_WORDS,
    ),
    Write(
        "agent-adds-a-finalizer",
        N1,
        "UPDATE",
        "pods",
        "bound-n1",
        {"metadata": {"finalizers": ["x.dev/y"]}},
        AGENT_POD_WORDS,
    ),
    Write(
        "agent-shortens-a-pods-life",
        N1,
        "UPDATE",
        "pods",
        "bound-n1",
        {"spec": {"activeDeadlineSeconds": 1}},
        AGENT_POD_WORDS,
    ),
    Write(
        "agent-writes-a-pods-status",
        N1,
        "UPDATE",
        "pods/status",
        "bound-n1",
        {"status": {"phase": "Failed"}},
        agent_verb_words("UPDATE", "pods/status"),
    ),
    Write("agent-deletes-a-pod", N1, "DELETE", "pods", "bound-n1", {}, agent_verb_words("DELETE", "pods")),
    Write("agent-creates-a-pod", N1, "CREATE", "pods", "fresh", _NEW_POD, agent_verb_words("CREATE", "pods")),
    Write(
        "agent-binds",
        N1,
        "CREATE",
        "pods/binding",
        "waiting",
        binding("waiting", RECORD),
        agent_verb_words("CREATE", "pods/binding"),
    ),
    Write(
        "agent-binds-the-old-way",
        N1,
        "CREATE",
        "bindings",
        "waiting",
        binding("waiting", RECORD),
        agent_verb_words("CREATE", "bindings"),
    ),
    Write("agent-isolates", N1, "UPDATE", "nodes", "n1", _annotate(**{names.ANN_ISOLATION: "x"})),
    Write("agent-deletes-its-node", N1, "DELETE", "nodes", "n1", {}, agent_verb_words("DELETE", "nodes")),
    Write(
        "agent-labels-its-node",
        N1,
        "UPDATE",
        "nodes",
        "n1",
        {"metadata": {"labels": {names.LABEL_MODE: "core_mem"}}},
        AGENT_NODE_WORDS,
    ),
    Write(
        "agent-adds-a-label",
        N1,
        "UPDATE",
        "nodes",
        "n1",
        {"metadata": {"labels": {"gpushare.dev/other": "true"}}},
        AGENT_NODE_WORDS,
    ),
    Write("agent-writes-a-note-on-node", N1, "UPDATE", "nodes", "n1", _annotate(note="y"), AGENT_NODE_WORDS),
    Write(
        "agent-cordons-its-node",
        N1,
        "UPDATE",
        "nodes",
        "n1",
        {"spec": {"unschedulable": True}},
        AGENT_NODE_WORDS,
    ),
    Write(
        "agent-counts-cpus",
        N1,
        "UPDATE",
        "nodes/status",
        "n1",
        {"status": {"capacity": {"cpu": "8"}}},
        AGENT_STATUS_WORDS,
    ),
    Write(
        "agent-writes-conditions",
        N1,
        "UPDATE",
        "nodes/status",
        "n1",
        {"status": {"conditions": [{"type": "Ready", "status": "True"}]}},
        AGENT_STATUS_WORDS,
    ),
    Write(
        "agent-says-that-it-shares-and-more",
        N1,
        "UPDATE",
        "nodes/status",
        "n1",
        _conditions("Ready", names.CONDITION_READY),
        AGENT_STATUS_WORDS,
    ),
    Write(
        "agent-labels-through-status",
        N1,
        "UPDATE",
        "nodes/status",
        "n1",
        {"metadata": {"labels": {"a": "b"}}},
        AGENT_STATUS_WORDS,
    ),
)
