"""Writes of the scheduler's account that admission accepts and rejects, by policies or by the webhook; see ``admission_writes``.

``OF_THE_SCHEDULER`` omits writes that only the webhook checks: the scheduler's own permissions do not include them.
"""

from typing import Any

from gpushare.api import names
from tests.admission_users import ADMIN, SCHEDULER
from tests.admission_words import JsonObject, box
from tests.admission_writes import Write

POD_WORDS = "the scheduler may only change labels and annotations of a pod"
STATUS_WORDS = "the scheduler may only change conditions and nominatedNodeName in a pod's status"
NODE_WORDS = "the scheduler may change a node only to remove its startup taint"
_OWNER = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}
_RUNNING = {"name": "c", "image": "i", "imageID": "x", "ready": True, "restartCount": 0, "state": {}}
_WAITS = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}


def _patch(name: str, body: JsonObject, says: str = "", part: str = "") -> Write:
    return Write(f"scheduler-{name}", SCHEDULER, "UPDATE", f"pods{part}", "plain-n1", body, says)


def _status(name: str, says: str = STATUS_WORDS, **status: Any) -> Write:
    return _patch(name, {"status": status}, says, "/status")


def _node(name: str, body: JsonObject) -> Write:
    return Write(f"scheduler-{name}", SCHEDULER, "UPDATE", "nodes", "n1", body, NODE_WORDS)


IMAGE = _patch("changes-an-image", {"spec": {"containers": [{**box(cpu="1"), "image": "evil"}]}}, POD_WORDS)
_EPHEMERAL = {"spec": {"ephemeralContainers": [{"name": "d", "image": "evil"}]}}
#: Rejected by RBAC already.
DEBUGS = _patch(
    "debugs", _EPHEMERAL, "the scheduler may not change pods/ephemeralcontainers", "/ephemeralcontainers"
)
OF_THE_SCHEDULER: tuple[Write, ...] = (
    IMAGE,
    _patch("shortens-a-pods-life", {"spec": {"activeDeadlineSeconds": 1}}, POD_WORDS),
    _patch("keeps-a-pod", {"metadata": {"finalizers": ["example.com/kept"]}}, POD_WORDS),
    _patch("gives-a-pod-an-owner", {"metadata": {"ownerReferences": [_OWNER]}}, POD_WORDS),
    _status("ends-a-pod", phase="Failed"),
    _status("gives-a-reason", reason="Evicted"),
    _status("leaves-a-message", message="x"),
    _status("gives-an-address", podIPs=[{"ip": "10.0.0.1"}]),
    _status("gives-a-host", hostIP="10.0.0.1"),
    _status("lists-containers", containerStatuses=[_RUNNING]),
    _patch(
        "keeps-a-pod-through-status",
        {"metadata": {"finalizers": ["example.com/kept"]}},
        POD_WORDS,
        "/status",
    ),
    _patch("annotates", {"metadata": {"annotations": {names.ANN_RETRY: "1"}}}),
    _patch("labels", {"metadata": {"labels": {"of-a-policy": "x"}}}),
    _patch("annotates-through-status", {"metadata": {"annotations": {names.ANN_RETRY: "1"}}}, "", "/status"),
    Write("scheduler-nominates", SCHEDULER, "UPDATE", "pods/status", "waiting", {"status": {"nominatedNodeName": "n"}}),
    _status("says-why-it-waits", "", conditions=[_WAITS]),
    _node("labels-a-node", {"metadata": {"labels": {names.LABEL_MODE: "core_mem"}}}),
    _node("annotates-a-node", {"metadata": {"annotations": {"note": "y"}}}),
    _node("cordons-a-node", {"spec": {"unschedulable": True}}),
    _node("taints-a-node", {"spec": {"taints": [{"key": "mine", "effect": "NoExecute"}]}}),
    Write("others-shorten-a-pods-life", ADMIN, "UPDATE", "pods", "plain-n1", {"spec": {"activeDeadlineSeconds": 1}}),
)  # fmt: skip
