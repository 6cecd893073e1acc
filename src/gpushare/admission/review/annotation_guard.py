"""Which users may write which of our annotations on pods, bindings and nodes. Pure.

Records of who holds what are the scheduler's and the node agents' alone; a node agent's token is good for its own
node and the pods on it, and the scheduler's for nothing that pods run: RBAC knows neither annotations nor "own".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from gpushare.admission.review.admission_review import Refusal, Request, pod_of
from gpushare.admission.rules.request_rules import RECORDED, RECORDS, carried
from gpushare.api import names
from gpushare.api.node.startup_taint import STARTUP_TAINT
from gpushare.api.objects import ObjectMeta

#: Claims of a token; the node only from Kubernetes 1.30 on.
NODE_NAME: Final = "authentication.kubernetes.io/node-name"
POD_NAME: Final = "authentication.kubernetes.io/pod-name"
POD_UID: Final = "authentication.kubernetes.io/pod-uid"
_RESOURCES: Final = (names.GPU_MEM, names.GPU_CORE, names.GPU_COUNT, names.GPU_WHOLE)
#: Fields that the API server changes with every write.
_BOOKKEEPING: Final = ("managedFields", "resourceVersion", "generation")
_AGENT: Final = "gpushare-node-agent"
#: The names of the chart's policies; this module implements the same rules for clusters without policies.
_SCHEDULER_PODS: Final = "gpushare-scheduler-pods"
_SCHEDULER_NODES: Final = "gpushare-scheduler-nodes"
_SAID_BY_OTHERS: Final = (
    "phase",
    "reason",
    "message",
    "hostIP",
    "hostIPs",
    "podIPs",
    "initContainerStatuses",
    "containerStatuses",
    "ephemeralContainerStatuses",
)


@dataclass(frozen=True, slots=True)
class Writers:
    """User names: ``records`` may write allocations, ``agent`` writes for its node, ``scheduler`` places pods."""

    records: frozenset[str]
    agent: str
    scheduler: str


class _Annotated(msgspec.Struct):
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)


def called(request: Request) -> str:
    """The resource with its subresource: ``pods/status``."""
    resource = request.resource.resource
    return f"{resource}/{request.sub_resource}" if request.sub_resource else resource


def refused_write(request: Request, writers: Writers) -> Refusal | None:
    """Why this user may not write our annotations this way. Raises one of ``review.UNREADABLE``."""
    user, resource = request.user_info.username, called(request)
    if resource in ("pods/binding", "bindings"):
        text = "" if user in writers.records else carried(_annotations(request.object))
        return Refusal(RECORDED, text) if text else None
    before, now = _annotations(request.old_object), _annotations(request.object)
    if request.resource.resource == "pods" and request.operation == "UPDATE":
        changed = [name for name in RECORDS if before.get(name) != now.get(name)]
        if changed and user not in writers.records:
            return Refusal(
                RECORDED,
                f"annotations that only gpushare itself writes: {', '.join(changed)}; do not change them "
                "(to release an allocation, delete the pod)",
            )
    described = before.get(names.ANN_DEVICES) != now.get(names.ANN_DEVICES)
    if resource in ("nodes", "nodes/status") and request.operation != "DELETE" and described:
        if user in writers.records:
            return None
        return Refusal(
            RECORDED,
            f"annotation {names.ANN_DEVICES} is written only by the node agent; do not change it "
            f"(to change what a node offers, set its label {names.LABEL_MODE})",
        )
    return None


def refused_verb(request: Request) -> Refusal | None:
    """Why a node agent may never do this."""
    resource = called(request)
    if request.operation == "UPDATE" and resource in ("pods", "nodes", "nodes/status"):
        return None
    return Refusal(
        _AGENT, f"the node agent may not {request.operation} {resource}: it only updates pods and nodes"
    )


def refused_place(request: Request, node: str) -> Refusal | None:
    """Why the agent of ``node`` (empty: unknown) may not make this change.

    Raises one of ``review.UNREADABLE``.
    """
    if not node:
        return Refusal(
            _AGENT,
            f"the node agent's token does not identify its node ({NODE_NAME}): use the token that Kubernetes issues for "
            "its pod, or set the chart's admission.nodeRestriction to never if the cluster's tokens do not contain it",
        )
    resource = called(request)
    place = _place(request)
    if place != node:
        other = f"node {request.name}"
        if resource == "pods":
            other = f"pod {request.namespace}/{request.name} on {f'node {place}' if place else 'no node'}"
        return Refusal(
            _AGENT, f"the node agent of node {node} may only change this node and the pods on it, not {other}"
        )
    return None


def refused_content(request: Request) -> Refusal | None:
    """Why no node agent may make this change, on any node. Raises one of ``review.UNREADABLE``."""
    before, now = _decoded(request.old_object), _decoded(request.object)
    match called(request):
        case "pods":
            same = _without(before, RECORDS) == _without(now, RECORDS)
            text = "the node agent may only change gpushare's annotations of a pod"
        case "nodes":
            described = ((names.ANN_DEVICES, names.ANN_ISOLATION), (names.LABEL_DESCRIBED,))
            same = _without(before, *described) == _without(now, *described)
            text = (
                f"the node agent may only change annotations {names.ANN_DEVICES} and {names.ANN_ISOLATION} "
                f"and label {names.LABEL_DESCRIBED} of its node"
            )
        case _:
            same = _without_resources(before) == _without_resources(now)
            text = (
                f"the node agent may only change condition {names.CONDITION_READY} and the capacity and allocatable of "
                f"{names.GPU_MEM}, {names.GPU_CORE}, {names.GPU_COUNT} and {names.GPU_WHOLE} in its node's status"
            )
    return None if same else Refusal(_AGENT, text)


def refused_scheduling(request: Request) -> Refusal | None:
    """Why the scheduler may not make this change. Raises one of ``review.UNREADABLE``."""
    resource = called(request)
    if request.operation != "UPDATE" or not (resource == "nodes" or request.resource.resource == "pods"):
        return None
    before, now = _decoded(request.old_object), _decoded(request.object)
    match resource:
        case "nodes":
            if _untainted(before) == _kept_of_node(now):
                return None
            text = "the scheduler may change a node only to remove its startup taint"
            return Refusal(_SCHEDULER_NODES, text)
        case "pods" | "pods/status":
            if _run(before) != _run(now):
                text = "the scheduler may only change labels and annotations of a pod"
                return Refusal(_SCHEDULER_PODS, text)
            if resource == "pods/status" and _said(before) != _said(now):
                text = "the scheduler may only change conditions and nominatedNodeName in a pod's status"
                return Refusal(_SCHEDULER_PODS, text)
            return None
        case _:
            return Refusal(_SCHEDULER_PODS, f"the scheduler may not change {resource}")


def _place(request: Request) -> str:
    """The written node, or the node of the written pod."""
    if request.resource.resource == "nodes":
        return request.name
    before = pod_of(request.resource, request.old_object)
    return before.spec.node_name if before else ""


def _annotations(raw: msgspec.Raw) -> dict[str, str]:
    if bytes(raw) == b"null":
        return {}
    return _ANNOTATED.decode(raw).metadata.annotations or {}


def _decoded(raw: msgspec.Raw) -> dict[str, Any]:
    found: dict[str, Any] | None = _OBJECT.decode(raw)
    return found or {}


def _without(
    found: Mapping[str, Any], annotations: tuple[str, ...] = (), labels: tuple[str, ...] = ()
) -> dict[str, Any]:
    """``found`` without fields that the API server changes itself, and without these annotations and labels."""
    metadata = {key: value for key, value in (found.get("metadata") or {}).items() if key not in _BOOKKEEPING}
    for place, dropped in (("annotations", annotations), ("labels", labels)):
        metadata[place] = {
            key: value for key, value in (metadata.get(place) or {}).items() if key not in dropped
        }
    return {**found, "metadata": metadata}


def _run(pod: Mapping[str, Any]) -> list[Any]:
    """The fields that decide what runs and how long the pod stays."""
    metadata = pod.get("metadata") or {}
    return [pod.get("spec"), metadata.get("finalizers") or [], metadata.get("ownerReferences") or []]


def _said(pod: Mapping[str, Any]) -> list[Any]:
    status = pod.get("status") or {}
    return [status.get(one) for one in _SAID_BY_OTHERS]


def _kept_of_node(node: Mapping[str, Any]) -> list[Any]:
    spec = dict(node.get("spec") or {})
    return [_without(node)["metadata"], spec.pop("taints", None) or [], spec]


def _untainted(node: Mapping[str, Any]) -> list[Any]:
    metadata, taints, spec = _kept_of_node(node)
    return [metadata, [one for one in taints if one.get("key") != STARTUP_TAINT], spec]


def _without_resources(found: Mapping[str, Any]) -> dict[str, Any]:
    status = dict(found.get("status") or {})
    for amounts in ("capacity", "allocatable"):
        status[amounts] = {
            key: value for key, value in (status.get(amounts) or {}).items() if key not in _RESOURCES
        }
    status["conditions"] = [
        one for one in status.get("conditions") or () if one.get("type") != names.CONDITION_READY
    ]
    return {**_without(found), "status": status}


_ANNOTATED: Final = msgspec.json.Decoder(_Annotated)
_OBJECT: Final = msgspec.json.Decoder(dict[str, Any] | None)
