"""Placeholder pods, which make cluster-autoscaler add a node for a pod that fits on no single GPU. Pure.

It asks for the same as the pod that it stands for, of a node that is none of those that refused that pod, and of a kind of which an
empty one would do. Nobody schedules it, so it never runs (docs/decisions/0024).
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
_NEVER_PULLED: Final = "stand-in"

Manifest = dict[str, Any]


class Likeness(msgspec.Struct, frozen=True):
    """Nodes for a placeholder pod: none of ``hosts`` (names by ``kubernetes.io/hostname``), and where the label ``key`` has one of ``kinds``."""

    hosts: frozenset[str]
    key: str
    kinds: frozenset[str]


class PlaceholderPod(msgspec.Struct, frozen=True):
    """An existing placeholder pod for the pod with UID ``stands_for``; ``told``: cluster-autoscaler considers it."""

    name: str
    uid: str
    stands_for: str
    likeness: Likeness
    told: bool = False
    leaving: bool = False


def obstacle(guest: Guest) -> str:
    """Why no placeholder pod can represent ``guest``; empty if one can.

    What only the pod itself can ask for (its own volumes, claims, ports) would be lost, and a node might be made that does not do.
    """
    spec = guest.spec
    if any(found and kind != "nodeAffinity" for kind, found in (spec.affinity or {}).items()):
        return "it asks for pods near it, or far"
    if HOSTNAME in (spec.node_selector or {}):
        return "it names its node"
    plain = msgspec.structs.replace(guest, spec=msgspec.structs.replace(spec, affinity=None))
    if plain.is_particular or spec.overhead or spec.scheduling_gates:
        return "it asks more of a node than resources, labels and tolerations"
    return ""


def placeholder_for(guest: Guest, likeness: Likeness, namespace: str) -> Manifest:
    """The manifest; identical for the same pod and likeness, with the same name for the same pod."""
    spec = guest.spec
    made: Manifest = {
        "schedulerName": names.PLACEHOLDER_SCHEDULER,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "affinity": {"nodeAffinity": _node_affinity(guest, likeness)},
        "containers": [_container(one) for one in spec.containers],
    }
    if spec.init_containers:
        made["initContainers"] = [_container(one) for one in spec.init_containers]
    if spec.node_selector:
        made["nodeSelector"] = dict(spec.node_selector)
    if spec.tolerations:
        made["tolerations"] = [_toleration(one) for one in spec.tolerations]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"stand-in-{guest.metadata.uid}",
            "namespace": namespace,
            "labels": {names.LABEL_STANDS_FOR: guest.metadata.uid},
            "annotations": {names.ANN_STANDS_FOR: guest.key},
        },
        "spec": made,
    }


def _node_affinity(guest: Guest, likeness: Likeness) -> Manifest:
    """The pod's node affinity, with the likeness in each of its terms."""
    asked = (guest.spec.affinity or {}).get("nodeAffinity") or {}
    required = asked.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
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
    made: Manifest = {
        "name": container.name,
        "image": _NEVER_PULLED,
        "securityContext": _RESTRICTED,
        "resources": msgspec.to_builtins(container.resources) if container.resources else {},
    }
    if container.restart_policy:
        made["restartPolicy"] = container.restart_policy
    return made


def _toleration(toleration: Toleration) -> Manifest:
    return {key: value for key, value in msgspec.to_builtins(toleration).items() if value}


# --- reading it back ----------------------------------------------------------------------------


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


class _Made(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


_MADE: Final = msgspec.json.Decoder(_Made)
#: The condition that cluster-autoscaler reacts to; kube-scheduler only writes it on its own pods.
UNSCHEDULABLE: Final = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}


def decode_placeholder(raw: bytes) -> tuple[str, PlaceholderPod] | None:
    """Key and placeholder pod from a pod's JSON; ``None`` if it is another pod. Raises ``msgspec.MsgspecError``."""
    pod = _MADE.decode(raw)
    meta = pod.metadata
    stands_for = (meta.labels or {}).get(names.LABEL_STANDS_FOR, "")
    if not stands_for:
        return None
    told = any(
        (one.type, one.status, one.reason) == tuple(UNSCHEDULABLE.values())
        for one in pod.status.conditions or ()
    )
    leaving = meta.deletion_timestamp is not None
    likeness = _likeness(_first_term(pod.spec.affinity))
    return f"{meta.namespace}/{meta.name}", PlaceholderPod(
        meta.name, meta.uid, stands_for, likeness, told, leaving
    )


def _first_term(affinity: Affinity | None) -> Iterable[NodeRequirement]:
    terms = () if affinity is None else affinity.terms
    return next((term.match_expressions or () for term in terms), ())


def _likeness(expressions: Iterable[NodeRequirement]) -> Likeness:
    """Ours are the last two; a pod that was labelled by something else is recreated."""
    *_, away, like = (NodeRequirement(), NodeRequirement(), *expressions)
    if (away.key, away.operator, like.operator) != (HOSTNAME, "NotIn", "In"):
        return Likeness(frozenset(), "", frozenset())
    return Likeness(frozenset(away.values or ()), like.key, frozenset(like.values or ()))
