"""Placeholder pods, which make cluster-autoscaler add a node for a pod that fits on no single GPU. No I/O.

A placeholder pod has the requests of the pod that it stands for. Its node affinity excludes the nodes that refused that pod, and selects
kinds of nodes that fit it when empty. No scheduler handles it, so it never runs (docs/decisions/0024).
"""

import copy
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from gpushare.api import names
from gpushare.api.node.hosting import Guest, GuestContainer
from gpushare.api.objects import Affinity, NodeRequirement
from gpushare.api.taints import Toleration

HOSTNAME: Final = "kubernetes.io/hostname"
#: Maximum number of excluded nodes: with long cloud names about 60 KB.
MOST_NAMED: Final = 1000
#: Required by Pod Security "restricted".
_RESTRICTED: Final = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
_IMAGE: Final = "stand-in"

Manifest = dict[str, Any]


class Likeness(msgspec.Struct, frozen=True):
    """Node selection of a placeholder pod: none of ``hosts`` (``kubernetes.io/hostname``), and one of ``kinds`` as value of label ``key``."""

    hosts: frozenset[str]
    key: str
    kinds: frozenset[str]


class PlaceholderPod(msgspec.Struct, frozen=True):
    """An existing placeholder pod for the pod with UID ``stands_for``; ``unschedulable``: marked so, for cluster-autoscaler to consider it."""

    name: str
    uid: str
    stands_for: str
    likeness: Likeness
    unschedulable: bool = False
    leaving: bool = False


def obstacle(guest: Guest) -> str:
    """Why no placeholder pod can represent ``guest``; empty if one can.

    Requirements that only the pod itself can have (its volumes, claims, ports) would be lost, and the new node might not fit it.
    """
    spec = guest.spec
    if any(rules and kind != "nodeAffinity" for kind, rules in (spec.affinity or {}).items()):
        return "it has pod affinity or anti-affinity"
    if HOSTNAME in (spec.node_selector or {}):
        return "it selects a node by name"
    plain = msgspec.structs.replace(guest, spec=msgspec.structs.replace(spec, affinity=None))
    if plain.is_particular or spec.overhead or spec.scheduling_gates:
        return "it has requirements that a placeholder pod cannot copy, such as volumes, host ports or claims"
    return ""


def placeholder_for(guest: Guest, likeness: Likeness, namespace: str) -> Manifest:
    """The manifest; identical for the same pod and likeness, with the same name for the same pod."""
    spec = guest.spec
    pod_spec: Manifest = {
        "schedulerName": names.PLACEHOLDER_SCHEDULER,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "affinity": {"nodeAffinity": _node_affinity(guest, likeness)},
        "containers": [_container(container) for container in spec.containers],
    }
    if spec.init_containers:
        pod_spec["initContainers"] = [_container(container) for container in spec.init_containers]
    if spec.node_selector:
        pod_spec["nodeSelector"] = dict(spec.node_selector)
    if spec.tolerations:
        pod_spec["tolerations"] = [_toleration(toleration) for toleration in spec.tolerations]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"stand-in-{guest.metadata.uid}",
            "namespace": namespace,
            "labels": {names.LABEL_STANDS_FOR: guest.metadata.uid},
            "annotations": {names.ANN_STANDS_FOR: guest.key},
        },
        "spec": pod_spec,
    }


def _node_affinity(guest: Guest, likeness: Likeness) -> Manifest:
    """The pod's node affinity, with the likeness in each of its terms."""
    affinity = (guest.spec.affinity or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = copy.deepcopy(required.get("nodeSelectorTerms") or [{}])
    for term in terms:
        term["matchExpressions"] = [*(term.get("matchExpressions") or ()), *_expressions(likeness)]
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}


def _expressions(likeness: Likeness) -> Sequence[Manifest]:
    return (
        {"key": HOSTNAME, "operator": "NotIn", "values": sorted(likeness.hosts)},
        {"key": likeness.key, "operator": "In", "values": sorted(likeness.kinds)},
    )


def _container(container: GuestContainer) -> Manifest:
    manifest: Manifest = {
        "name": container.name,
        "image": _IMAGE,
        "securityContext": _RESTRICTED,
        "resources": msgspec.to_builtins(container.resources) if container.resources else {},
    }
    if container.restart_policy:
        manifest["restartPolicy"] = container.restart_policy
    return manifest


def _toleration(toleration: Toleration) -> Manifest:
    return {key: value for key, value in msgspec.to_builtins(toleration).items() if value}


# --- decoding -----------------------------------------------------------------------------------


class _Spec(msgspec.Struct):
    affinity: Affinity | None = None


class _Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None


class _Condition(msgspec.Struct):
    type: str = ""
    status: str = ""
    reason: str = ""


class _Status(msgspec.Struct):
    conditions: list[_Condition] | None = None


class _Pod(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


_POD: Final = msgspec.json.Decoder(_Pod)
#: The condition that cluster-autoscaler reacts to; kube-scheduler only writes it on its own pods.
UNSCHEDULABLE: Final = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}


def decode_placeholder(raw: bytes) -> tuple[str, PlaceholderPod] | None:
    """Key and placeholder pod from a pod's JSON; ``None`` if it is another pod. Raises ``msgspec.MsgspecError``."""
    pod = _POD.decode(raw)
    meta = pod.metadata
    stands_for = (meta.labels or {}).get(names.LABEL_STANDS_FOR, "")
    if not stands_for:
        return None
    unschedulable = any(
        (condition.type, condition.status, condition.reason) == tuple(UNSCHEDULABLE.values())
        for condition in pod.status.conditions or ()
    )
    leaving = meta.deletion_timestamp is not None
    likeness = _likeness(_first_term(pod.spec.affinity))
    return f"{meta.namespace}/{meta.name}", PlaceholderPod(
        meta.name, meta.uid, stands_for, likeness, unschedulable, leaving
    )


def _first_term(affinity: Affinity | None) -> Iterable[NodeRequirement]:
    terms = () if affinity is None else affinity.terms
    return next((term.match_expressions or () for term in terms), ())


def _likeness(expressions: Iterable[NodeRequirement]) -> Likeness:
    """The likeness in the last two expressions; empty for a pod that was labelled by something else, which is then recreated."""
    *_, excluded, selected = (NodeRequirement(), NodeRequirement(), *expressions)
    if (excluded.key, excluded.operator, selected.operator) != (HOSTNAME, "NotIn", "In"):
        return Likeness(frozenset(), "", frozenset())
    return Likeness(frozenset(excluded.values or ()), selected.key, frozenset(selected.values or ()))
