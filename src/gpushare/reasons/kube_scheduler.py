"""Reasons and suggestions for pending pods that kube-scheduler never passes to the extender.

kube-scheduler writes into the pod's condition why no node fits. Its texts change little between versions
(``pkg/scheduler/framework/plugins``, 1.28 to 1.36). Unknown texts are passed on unchanged.
"""

import re
from collections.abc import Collection
from functools import lru_cache
from typing import Final

from gpushare.api import names
from gpushare.reasons.categories import Category, category_of
from gpushare.reasons.unscheduled import MAX_MESSAGE_LENGTH, Unplaced

#: The part of the message on preemption, which repeats the reasons.
_PREEMPTION: Final = re.compile(r"\s*(?:no new claims to deallocate, )?preemption: .*", re.DOTALL)
#: Start of kube-scheduler's message when a scheduling cycle found no node.
_NO_NODE: Final = re.compile(r"0/\d+ nodes are available: |no nodes available")
_PART: Final = re.compile(r"(?:: |, )\d+ ")
_GPUS_LACKING: Final = re.compile(r"Insufficient (?:aliyun\.com|gpushare\.dev)/")
#: Our reasons that have no category of their own: on modes of nodes, and on malformed labels and annotations of nodes.
_OUR_PREFIXES: Final = (
    "node shares no GPU memory",
    "node offers ",
    "node has no GPU",
    "node is not known to the scheduler",
    "node is switching ",
    "node is labelled ",
    "label ack.node.gpu.",
    "label gpushare.dev/",
    "annotation gpushare.dev/",
)

_LABELS: Final = re.compile(
    r"0/(?P<all>\d+) nodes are available: (?P<nodes>\d+) node\(s\) didn't match Pod's node affinity/selector"
)
#: For pods that select nodes only by ``nodeSelector``, ``label_suggestions`` has a more precise text.
OTHER_LABELS: Final = (
    "a node with the labels that its nodeSelector or node affinity requires, or another selector"
)
_FAULT_TAINT: Final = r"(?:node\.kubernetes\.io/|node\.cloudprovider\.kubernetes\.io/|ToBeDeletedBy)"
_HELP: Final = (
    (r"didn't match Pod's node affinity", OTHER_LABELS),
    (r"didn't match the requested node name", "the node that its spec names"),
    # Taints of nodes that are not ready, or about to go, which no pod should tolerate.
    (
        rf"had (?:untolerated )?taint \{{(?P<taint>{_FAULT_TAINT}[^}}]*)\}}",
        "a node that is ready, without the taint{taint}",
    ),
    (
        rf"had (?:untolerated )?taint(?! \{{{_FAULT_TAINT})(?:\(s\))?(?: \{{(?P<taint>[^}}]*)\}})?",
        "a toleration of the taint{taint}, or a node without it",
    ),
    (r"were unschedulable|node\(s\) were not ready", "`kubectl uncordon` of a node, or a node that is ready"),
    (
        r"Insufficient (?P<what>\S+?)[,.]?(?=\s|$)",
        "a node with more free {what}, or a smaller request",
    ),
    (r"Too many pods", "a node with a higher limit of pods"),
    (
        r'persistentvolumeclaim "(?P<claim>[^"]+)" not found',
        "a PersistentVolumeClaim {claim} in its namespace",
    ),
    (
        r"unbound immediate PersistentVolumeClaims|didn't find available persistent volumes",
        "a volume for its PersistentVolumeClaims (`kubectl get pvc`)",
    ),
    (
        r"volume node affinity conflict|node\(s\) had no available volume zone",
        "a node that can access its volumes",
    ),
    (r"free ports", "a node on which its host ports are free"),
    (
        r"didn't match pod (?:anti-)?affinity|didn't satisfy existing pods anti-affinity|didn't match pod topology spread",
        "other pods on the nodes, or other affinity and spread rules in its template",
    ),
    (r"no nodes available", "a node"),
)
_HELPS: Final = tuple((re.compile(pattern), text) for pattern, text in _HELP)
#: Suggestions listed for a pod.
_MAX_SUGGESTIONS: Final = 3
_NO_SUGGESTION: Final = "see the scheduler's message: `kubectl describe pod` shows all of it"

GATES_HELP: Final = (
    "the controller that set them must remove them: `kubectl get pod POD -o jsonpath={.spec.schedulingGates}`"
)


@lru_cache(maxsize=1024)
def description(unplaced: Unplaced) -> str:
    """The scheduler's message on its own rules; empty if there is none, or if it only repeats our extender's reasons."""
    message = _without_preemption(unplaced.condition_message)
    return "" if not message or _has_our_reason(message) else f"{unplaced.scheduler} says: {message}"


def refuse_all(unplaced: Unplaced) -> bool:
    """Whether, by its scheduler's last message, its own rules refuse every node: the message is complete and has no reason of ours."""
    complete = len(unplaced.condition_message) <= MAX_MESSAGE_LENGTH
    return complete and _NO_NODE.match(unplaced.condition_message) is not None and bool(description(unplaced))


def lacks_gpus(unplaced: Unplaced) -> bool:
    """Whether its scheduler itself found too few GPU resources; the ledger has a more precise reason then."""
    return _GPUS_LACKING.search(unplaced.condition_message) is not None


def is_unserved(unplaced: Unplaced, asked_by: Collection[str]) -> bool:
    """Whether no scheduler seems to run under the pod's ``schedulerName``; valid once the pod has been pending for a while.

    Never true for our own scheduler's name: if kube-scheduler has not called this replica, another one leads.
    """
    name = unplaced.scheduler
    return not unplaced.condition_message and name not in asked_by and name not in ("", names.SCHEDULER_NAME)


def gated_text(unplaced: Unplaced) -> str:
    """The reason of a pod with scheduling gates."""
    return f"scheduling gates block it: {unplaced.gates}"


def unserved_text(unplaced: Unplaced) -> str:
    """The reason of a pod that no scheduler handles."""
    return f"no scheduler has handled it: none seems to run for schedulerName {unplaced.scheduler}"


def unserved_help(unplaced: Unplaced, asked_by: Collection[str]) -> str:
    """The suggestion for such a pod; ``schedulerName`` is immutable."""
    known = ", ".join(sorted(asked_by)) or names.SCHEDULER_NAME
    return f"the pod recreated with schedulerName {known}, or a scheduler that runs for {unplaced.scheduler}"


def would_help(unplaced: Unplaced, asked_by: Collection[str]) -> str:
    """The suggestion for the scheduler's message; it names a scheduler that never calls the extender."""
    advice = _suggestions(_without_preemption(unplaced.condition_message))
    if unplaced.mistyped:
        # If it selects a label that no node can have, suggesting a node with that label is useless.
        advice = "; ".join(
            (unplaced.mistyped, *(text for text in advice.split("; ") if text != OTHER_LABELS))
        )
    if asked_by and unplaced.scheduler not in asked_by:
        known = ", ".join(sorted(asked_by))
        advice += f"; {unplaced.scheduler} does not use the GPU extender, but {known} does: check the pod's schedulerName"
    return advice


def only_labels_refuse(unplaced: Unplaced) -> bool:
    """Whether, by its scheduler's last message, only node labels exclude the pod from every node."""
    match = _LABELS.fullmatch(_without_preemption(unplaced.condition_message))
    return match is not None and match["nodes"] == match["all"]


@lru_cache(maxsize=1024)
def _suggestions(text: str) -> str:
    advice: dict[str, None] = {}
    for pattern, help_text in _HELPS:
        for match in pattern.finditer(text):
            values = {key: value or "" for key, value in match.groupdict().items()}
            if values.get("taint"):
                values["taint"] = f" {values['taint'].rstrip(': ')}"
            advice.setdefault(_correction(values.get("what", "")) or help_text.format(**values))
    return "; ".join(list(advice)[:_MAX_SUGGESTIONS]) or _NO_SUGGESTION


def _correction(resource: str) -> str:
    """A correction for a resource name that is a misspelling of ours; else empty."""
    if not resource:
        return ""
    # Imported here because it is rarely needed and slows the scheduler's start.
    from gpushare.reasons.mistakes.names import is_unknown, meant

    return (
        f"another name, as no node offers {resource}: write {meant(resource)}" if is_unknown(resource) else ""
    )


def _without_preemption(message: str) -> str:
    return _PREEMPTION.sub("", message).strip().rstrip(".")


def _has_our_reason(text: str) -> bool:
    for part in _PART.finditer(text):
        reason = text[part.end() :]
        if category_of(reason) is not Category.NODE or reason.startswith(_OUR_PREFIXES):
            return True
    return False
