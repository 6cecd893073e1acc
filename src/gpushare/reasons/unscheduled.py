"""Fields of a pod without a node that explain why it is pending: scheduler, gates, condition, selector and original request.

kube-scheduler calls an extender only with nodes that its own rules allow. If there are none, the reason is only in the pod's condition
``PodScheduled``.
"""

from typing import Final

import msgspec

from gpushare.api.errors import InvalidRequest
from gpushare.api.objects import Pod
from gpushare.api.request.unit_conversion import read_requested
from gpushare.api.taints import Toleration, read_tolerations
from gpushare.reasons.mistakes.selectors import mistyped

_CONDITION: Final = "PodScheduled"
_DEFAULT_TOLERATIONS: Final = frozenset({"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"})
#: Characters of a condition's message that are stored: with thousands of nodes it may list as many reasons.
MAX_MESSAGE_LENGTH: Final = 600


class Unplaced(msgspec.Struct, frozen=True, gc=False):
    """``condition_message``: the condition's message, empty if no scheduler has written one. ``gates``: names of scheduling gates, comma-separated.

    ``nominated``: the node that its scheduler nominated by preemption. ``mistyped``: mistakes in the node labels that it selects.
    ``requested``: the request before conversion to units, by container: ``main 6144Mi``. It is read from ``gpushare.dev/requested``,
    the only trace of admission's conversion.
    """

    scheduler: str = ""
    gates: str = ""
    condition_message: str = ""
    nominated: str = ""
    mistyped: str = ""
    requested: str = ""
    selector: str = ""
    """The selected node labels, ``key=value`` separated by spaces; empty if there is required node affinity."""
    affine: bool = False
    """Whether it has required node affinity."""
    tolerations: tuple[Toleration, ...] = ()
    """Tolerations of taints that repel new pods, without the default ones for nodes that are not ready."""


def unplaced_of(pod: Pod) -> Unplaced:
    """The fields of a pod without a node."""
    condition_message = ""
    for condition in pod.status.conditions or ():
        if condition.type == _CONDITION and condition.status == "False":
            condition_message = condition.message
            break
    gates = pod.spec.scheduling_gates or ()
    return Unplaced(
        pod.spec.scheduler_name,
        ", ".join(str(gate.get("name", "")) for gate in gates if isinstance(gate, dict)),
        condition_message
        if len(condition_message) <= MAX_MESSAGE_LENGTH
        else f"{condition_message[:MAX_MESSAGE_LENGTH]}…",
        pod.status.nominated_node_name,
        "; ".join(mistyped(pod)),
        _requested(pod),
        _selector(pod),
        affine=pod.spec.affinity is not None and bool(pod.spec.affinity.terms),
        tolerations=tuple(
            toleration
            for toleration in read_tolerations(pod.spec.tolerations)
            if toleration.key not in _DEFAULT_TOLERATIONS
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
        return ""  # the reason of the pod reports the error
    return ", ".join(f"{name} {text}" for name, text in requested.containers.items()) if requested else ""
