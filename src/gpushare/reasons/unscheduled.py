"""What a pod without a node says itself of why it has none, and of what it asked for: its scheduler, its gates, and what was written on it.

kube-scheduler asks an extender about nodes alone that pass its own rules. What it found where none does is in the pod's condition
``PodScheduled``, and nowhere else that is watched.
"""

from typing import Final

import msgspec

from gpushare.api.errors import InvalidRequest
from gpushare.api.objects import Pod
from gpushare.api.request.unit_conversion import read_requested
from gpushare.api.taints import Toleration, read_tolerations
from gpushare.reasons.mistakes.selectors import mistyped

_CONDITION: Final = "PodScheduled"
_OF_EVERY_POD: Final = frozenset({"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"})
#: Characters of a condition's message that are kept: with thousands of nodes it may have as many reasons.
LONGEST_SAID: Final = 600


class Unplaced(msgspec.Struct, frozen=True, gc=False):
    """``says``: the message of the condition, empty where no scheduler has written one. ``gates``: their names, comma-separated.

    ``nominated``: the node on which its scheduler has made room for it. ``mistyped``: what is wrong with the labels of nodes that it wants.
    ``requested``: what it asked for in people's units, as ``gpushare.dev/requested`` has it, by container: ``main 6144Mi``.
    Admission leaves no other mark on a pod.
    """

    scheduler: str = ""
    gates: str = ""
    says: str = ""
    nominated: str = ""
    mistyped: str = ""
    requested: str = ""
    selector: str = ""
    """The labels that its node must have, ``key=value`` and a space between two; empty where required affinity says more of them."""
    affine: bool = False
    """Whether required node affinity says more of its node."""
    tolerations: tuple[Toleration, ...] = ()
    """Of taints that keep new pods off, without those that every pod is given for nodes that are not ready."""


def unplaced_of(pod: Pod) -> Unplaced:
    """What is read of a pod without a node."""
    says = ""
    for one in pod.status.conditions or ():
        if one.type == _CONDITION and one.status == "False":
            says = one.message
            break
    gates = pod.spec.scheduling_gates or ()
    return Unplaced(
        pod.spec.scheduler_name,
        ", ".join(str(one.get("name", "")) for one in gates if isinstance(one, dict)),
        says if len(says) <= LONGEST_SAID else f"{says[:LONGEST_SAID]}…",
        pod.status.nominated_node_name,
        "; ".join(mistyped(pod)),
        _requested(pod),
        _selector(pod),
        affine=pod.spec.affinity is not None and bool(pod.spec.affinity.terms),
        tolerations=tuple(
            one for one in read_tolerations(pod.spec.tolerations) if one.key not in _OF_EVERY_POD
        ),
    )


def _selector(pod: Pod) -> str:
    spec = pod.spec
    if spec.affinity is not None and spec.affinity.terms:
        return ""
    return " ".join(f"{key}={value}" for key, value in (spec.node_selector or {}).items())


def _requested(pod: Pod) -> str:
    try:
        requested = read_requested(pod)
    except InvalidRequest:
        return ""  # why it cannot be placed says so
    return ", ".join(f"{name} {text}" for name, text in requested.containers.items()) if requested else ""
