"""Pods that no scheduler asks us about: what keeps them, in their scheduler's own words, and what would help.

kube-scheduler writes on the pod why no node takes it, in texts of its own that change little from version to version
(``pkg/scheduler/framework/plugins``, 1.28 to 1.36). A text that is not known here is passed on as it is.
"""

import re
from collections.abc import Collection
from functools import lru_cache
from typing import Final

from gpushare.api import names
from gpushare.reasons.categories import Category, category_of
from gpushare.reasons.unscheduled import LONGEST_SAID, Unplaced

#: What follows in the message is of preemption, and says the same once more.
_AFTERMATH: Final = re.compile(r"\s*(?:no new claims to deallocate, )?preemption: .*", re.DOTALL)
#: How kube-scheduler begins where a cycle ended before a node was chosen.
_NO_NODE: Final = re.compile(r"0/\d+ nodes are available: |no nodes available")
_PART: Final = re.compile(r"(?:: |, )\d+ ")
_OF_GPUS: Final = re.compile(r"Insufficient (?:aliyun\.com|gpushare\.dev)/")
#: Our reasons that no kind is read from: of nodes' modes, and of slips in what people and agents write on nodes.
_OURS: Final = (
    "node shares no GPU memory",
    "node gives ",
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
#: Of a pod whose ``nodeSelector`` alone speaks of labels more is said (``label_suggestions``).
OTHER_LABELS: Final = (
    "a node with the labels that its nodeSelector or node affinity wants, or another selector"
)
_HELP: Final = (
    (r"didn't match Pod's node affinity", OTHER_LABELS),
    (r"didn't match the requested node name", "the node that its spec names"),
    (
        r"had (?:untolerated )?taint(?:\(s\))?(?: \{(?P<taint>[^}]*)\})?",
        "a toleration of the taint{taint}, or a node without it",
    ),
    (r"were unschedulable|node\(s\) were not ready", "`kubectl uncordon` of a node, or a node that is ready"),
    (
        r"Insufficient (?P<what>\S+?)[,.]?(?=\s|$)",
        "a node with more {what} to spare, or a smaller request of it",
    ),
    (r"Too many pods", "a node that may hold more pods"),
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
        "a node from which its volumes can be reached",
    ),
    (r"free ports", "a node on which its host ports are free"),
    (
        r"didn't match pod (?:anti-)?affinity|didn't satisfy existing pods anti-affinity|didn't match pod topology spread",
        "other pods beside it, or other rules of affinity and spread in its template",
    ),
    (r"no nodes available", "a node"),
)
_HELPS: Final = tuple((re.compile(pattern), text) for pattern, text in _HELP)
#: Ways to help that are named for one pod.
_MOST_HELP: Final = 3
_ELSE: Final = "what its scheduler names there: `kubectl describe pod` has it all"

GATES_HELP: Final = "nothing but their removal by whoever sets them: `kubectl get pod POD -o jsonpath={.spec.schedulingGates}`"


@lru_cache(maxsize=1024)
def says(unplaced: Unplaced) -> str:
    """What the pod's scheduler says of its own rules; empty where it says nothing, or repeats what we have advice it."""
    text = _own(unplaced.says)
    return "" if not text or _is_ours(text) else f"{unplaced.scheduler} says: {text}"


def refuse_all(unplaced: Unplaced) -> bool:
    """Whether what its scheduler wrote last is that its own rules refuse every node: all of it is there, and nothing of it is ours."""
    whole = len(unplaced.says) <= LONGEST_SAID
    return whole and _NO_NODE.match(unplaced.says) is not None and bool(says(unplaced))


def of_gpus(unplaced: Unplaced) -> bool:
    """Whether its scheduler counted GPUs itself, and found too few: of these the ledger says more."""
    return _OF_GPUS.search(unplaced.says) is not None


def nobody(unplaced: Unplaced, asked_by: Collection[str]) -> bool:
    """Whether no scheduler seems to run under the pod's name for one, once it had time to be looked at.

    Of our own name it is not said: where nobody has asked, another scheduler leads.
    """
    name = unplaced.scheduler
    return not unplaced.says and name not in asked_by and name not in ("", names.SCHEDULER_NAME)


def gated_text(unplaced: Unplaced) -> str:
    """Why a pod with gates waits."""
    return f"scheduling gates keep every scheduler from it: {unplaced.gates}"


def unserved_text(unplaced: Unplaced) -> str:
    """Why a pod waits that nobody looks at."""
    return f"no scheduler has looked at it: none seems to run for schedulerName {unplaced.scheduler}"


def unserved_help(unplaced: Unplaced, asked_by: Collection[str]) -> str:
    """What lets it be looked at; the name in a pod's spec cannot be changed."""
    known = ", ".join(sorted(asked_by)) or names.SCHEDULER_NAME
    return f"the pod recreated with schedulerName {known}, or a scheduler that runs for {unplaced.scheduler}"


def would_help(unplaced: Unplaced, asked_by: Collection[str]) -> str:
    """What answers what the pod's scheduler says; a scheduler that never asks about GPUs is named."""
    advice = _helps(_own(unplaced.says))
    if unplaced.mistyped:
        # Where it waits for a label that no node can have, no such node is worth naming.
        advice = "; ".join((unplaced.mistyped, *(one for one in advice.split("; ") if one != OTHER_LABELS)))
    if asked_by and unplaced.scheduler not in asked_by:
        known = ", ".join(sorted(asked_by))
        advice += (
            f"; {unplaced.scheduler} has not asked about GPUs here, {known} has: see the pod's schedulerName"
        )
    return advice


def of_labels_alone(unplaced: Unplaced) -> bool:
    """Whether nothing but its labels keeps the pod off each node that there is, as its scheduler wrote last."""
    found = _LABELS.fullmatch(_own(unplaced.says))
    return found is not None and found["nodes"] == found["all"]


@lru_cache(maxsize=1024)
def _helps(text: str) -> str:
    advice: dict[str, None] = {}
    for pattern, help_text in _HELPS:
        for found in pattern.finditer(text):
            some = {key: value or "" for key, value in found.groupdict().items()}
            if some.get("taint"):
                some["taint"] = f" {some['taint'].rstrip(': ')}"
            advice.setdefault(_another_name(some.get("what", "")) or help_text.format(**some))
    return "; ".join(list(advice)[:_MOST_HELP]) or _ELSE


def _another_name(resource: str) -> str:
    """What to write for a resource that looks like ours and is none; empty for all others."""
    if not resource:
        return ""
    # Hardly a pod waits so, and the scheduler starts without it.
    from gpushare.reasons.mistakes.names import is_unknown, meant

    return (
        f"another name, as no node offers {resource}: write {meant(resource)}" if is_unknown(resource) else ""
    )


def _own(message: str) -> str:
    return _AFTERMATH.sub("", message).strip().rstrip(".")


def _is_ours(text: str) -> bool:
    for part in _PART.finditer(text):
        rest = text[part.end() :]
        if category_of(rest) is not Category.NODE or rest.startswith(_OURS):
            return True
    return False
