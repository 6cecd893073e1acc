"""Manifests as a user would apply them, and the pods that their controllers would create.

Admission applies first, as on a cluster: requests in MiB or percent are converted to units, pods without a scheduler name are
pointed to ours, and requests that can never be met are rejected with admission's messages.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from gpushare.admission.rules.request_rules import judge, pointing
from gpushare.admission.rules.unit_rules import conversion
from gpushare.api import names
from gpushare.api.json_objects import Json, key_of, name_of, spec_of
from gpushare.api.request.unit_conversion import Counting
from gpushare.api.submitted import SubmittedPod
from gpushare.reasons.mistakes.pods import mistakes_except_nodes
from gpushare.reasons.mistakes.selectors import mistyped
from gpushare.simulate.errors import SimulateError
from gpushare.simulate.input.fields import check, check_workload, unreadable
from gpushare.simulate.input.replicas import (
    LABEL_POD_NAME,
    ExistingPods,
    counted,
    differences,
    is_terminating,
    missing,
    pods_by_workload,
)
from gpushare.simulate.snapshot import KINDS, ClusterState, end_of_job, namespace_labels, state_of

#: The most pods that one set of manifests may create.
MOST_PODS: Final = 100_000
_KIND_OF_STATE: Final = (
    "ResourcePolicy",
    names.QUOTA_KIND,
    "PriorityClass",
    "Namespace",
    "PodDisruptionBudget",
    "ResourceClaim",
    "ResourceClaimTemplate",
    "DeviceClass",
)
_CLUSTER_SCOPED: Final = ("PriorityClass", "Namespace", "DeviceClass")
_EXCLUDED: Final = "kube-system"
_SYSTEM_PRIORITIES: Final = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


class NewPod(msgspec.Struct, frozen=True):
    """A pod to be created. ``refused``: why admission rejects it; empty if it does not."""

    pod: Json
    workload: str
    refused: str = ""


class Manifests(msgspec.Struct, frozen=True):
    """What was read: pods in the order of creation, objects that affect decisions, and the names of skipped ones.

    ``existing`` are the workloads that have pods in the cluster already. ``warnings`` are those of admission, each with its object.
    """

    pods: tuple[NewPod, ...]
    state: ClusterState
    skipped: tuple[str, ...] = ()
    existing: tuple[ExistingPods, ...] = ()
    warnings: tuple[str, ...] = ()


def manifests_of(
    documents: Iterable[tuple[str, Json]],
    cluster: ClusterState,
    counting: Counting,
    namespace: str = "default",
) -> Manifests:
    """The result of applying these objects, each with the name of its file, to ``cluster``; raises ``SimulateError``.

    Objects without a namespace go to ``namespace``. For a workload only pods that the cluster lacks are created.
    """
    listed = list(documents)
    for subject, document in listed:
        if not isinstance(document.get("metadata"), dict) or not document["metadata"].get("name"):
            raise SimulateError(subject, f"a {document['kind']} has no metadata.name")
        if document["kind"] in _KIND_OF_STATE:
            check(_in_namespace(document, namespace), subject)
    state_objects = [
        _in_namespace(document, namespace) for _, document in listed if document["kind"] in _KIND_OF_STATE
    ]
    new_state = state_of(state_objects, "manifests")
    making = _Making(cluster, joined(cluster, new_state), counting)
    pods: list[NewPod] = []
    skipped: list[str] = []
    for subject, document in listed:
        kind = document["kind"]
        if kind in _KIND_OF_STATE:
            continue
        if kind not in _COUNTS:
            if intended := _intended_kind(kind):
                raise SimulateError(f"{subject}: {kind} {name_of(document)}", f"is no kind; write {intended}")
            skipped.append(f"{kind} {name_of(document)}")
            continue
        try:
            check_workload(document)
            for new_pod in making.of(_in_namespace(document, namespace)):
                if len(pods) == MOST_PODS:
                    raise SimulateError(subject, f"more than {MOST_PODS} pods; simulate them in parts")
                making.add(new_pod, subject)
                pods.append(new_pod)
        except (TypeError, AttributeError, KeyError, ValueError) as error:
            raise unreadable(document, subject, error) from None
    return Manifests(tuple(pods), new_state, tuple(skipped), tuple(making.existing), tuple(making.warnings))


def joined(cluster: ClusterState, more: ClusterState) -> ClusterState:
    """``cluster`` with the objects of manifests, which replace those with the same name."""
    merged: dict[str, tuple[Json, ...]] = {}
    for field in map(KINDS.__getitem__, _KIND_OF_STATE):
        new: tuple[Json, ...] = getattr(more, field)
        keys = {_key(item) for item in new}
        merged[field] = (*(item for item in getattr(cluster, field) if _key(item) not in keys), *new)
    return msgspec.structs.replace(cluster, **merged)


def _key(item: Json) -> tuple[str, str]:
    return str(item["metadata"].get("namespace") or ""), name_of(item)


def _in_namespace(document: Json, namespace: str) -> Json:
    meta = document["metadata"]
    if document["kind"] in _CLUSTER_SCOPED:
        return document
    fixed = names.QUOTA_NAMESPACE if document["kind"] == names.QUOTA_KIND else namespace
    name = meta["name"]
    uid = meta.get("uid") or f"simulated-{document['kind']}-{meta.get('namespace') or fixed}-{name}"
    return {**document, "metadata": {**meta, "namespace": meta.get("namespace") or fixed, "uid": uid}}


def _count_of_job(spec: Mapping[str, Any]) -> int:
    parallelism = _whole(spec, "parallelism", 1)
    return min(parallelism, _whole(spec, "completions", parallelism))


def _whole(spec: Mapping[str, Any], key: str, default: int) -> int:
    value = spec.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{key} is {value!r}, not a whole number")
    return value


_COUNTS: Final = {
    "Pod": lambda spec: 1,
    "Deployment": lambda spec: _whole(spec, "replicas", 1),
    "ReplicaSet": lambda spec: _whole(spec, "replicas", 1),
    "ReplicationController": lambda spec: _whole(spec, "replicas", 1),
    "StatefulSet": lambda spec: _whole(spec, "replicas", 1),
    "Job": _count_of_job,
}


#: Kinds of other projects whose names look like ours.
_ALIKE: Final = ("ElasticQuota",)


def _intended_kind(kind: str) -> str:
    """The kind that a misspelt ``kind`` stands for; empty if it is another kind."""
    from difflib import get_close_matches

    known = {name.lower(): name for name in (*_COUNTS, *_KIND_OF_STATE)}
    if kind in _ALIKE:
        return ""
    return next((known[match] for match in get_close_matches(kind.lower(), known, 1, 0.85)), "")


class _Making:
    """Creates the pods of one object after the other, for a ``cluster`` with the rules of ``known``."""

    def __init__(self, cluster: ClusterState, known: ClusterState, counting: Counting) -> None:
        self._known = known
        self._counting = counting
        self._pods = pods_by_workload(cluster.pods)
        self._taken = set(map(key_of, cluster.pods))
        self._ended = {key_of(job): end_of_job(job) for job in cluster.jobs}
        self._made: dict[str, tuple[str, str]] = {}
        self.existing: list[ExistingPods] = []
        self.warnings: list[str] = []

    def of(self, document: Json) -> Iterator[NewPod]:
        """The pods that the object's controller creates, after admission."""
        kind, meta = document["kind"], document["metadata"]
        workload = f"{meta['namespace']}/{kind} {meta['name']}"
        first = (
            _pod(document, str(meta["name"]), meta["namespace"]) if kind == "Pod" else _pod_of(document, 0)
        )
        if meta["namespace"] != _EXCLUDED:
            pod = _decoded(first)
            mistakes = (*mistakes_except_nodes(pod, self._counting.unit), *mistyped(pod))
            self.warnings += [f"{workload}: {text}" for text in mistakes]
        if kind == "Pod":
            yield self._admitted(first, workload)
            return
        replicas = _COUNTS[kind](spec_of(document))
        existing = counted(kind, self._pods.get(workload, ()))
        coming = 0
        for number in missing(document, replicas, existing, self._taken):
            coming += 1
            yield self._admitted(_pod_of(document, number), workload)
        ended = self._ended.get(key_of(document), "") if kind == "Job" else ""
        if existing or ended:
            terminating = sum(map(is_terminating, existing))
            differs = differences(self._admitted(first, workload).pod, existing)
            self.existing.append(
                ExistingPods(workload, replicas, len(existing), coming, terminating, differs, ended)
            )

    def add(self, new_pod: NewPod, subject: str) -> None:
        """Record that a pod is from ``subject`` (a file); raises ``SimulateError`` if another pod has its name."""
        key = key_of(new_pod.pod)
        if key not in self._made:
            self._made[key] = new_pod.workload, subject
            return
        workload, first = self._made[key]
        if workload != new_pod.workload:
            raise SimulateError(
                f"pod {key}",
                f"is created by {workload} in {first} and by {new_pod.workload} in {subject}; rename one of them",
            )
        where = f"twice in {first}" if first == subject else f"in {first} and in {subject}"
        raise SimulateError(workload, f"is {where}; remove or rename one")

    def _admitted(self, pod: Json, workload: str) -> NewPod:
        return _admitted(pod, workload, self._known, self._counting)


def _pod_of(document: Json, number: int) -> Json:
    """The pod that the object's controller creates, numbered as a StatefulSet's are."""
    kind, meta = document["kind"], document["metadata"]
    name = f"{meta['name']}-{number}"
    pod = _pod(spec_of(document)["template"], name, meta["namespace"])
    pod["metadata"]["ownerReferences"] = [
        {
            "apiVersion": document.get("apiVersion", ""),
            "kind": kind,
            "name": meta["name"],
            "uid": meta["uid"],
            "controller": True,
        }
    ]
    if kind == "StatefulSet":
        pod["metadata"]["labels"] = {
            **(pod["metadata"].get("labels") or {}),
            LABEL_POD_NAME: name,
        }
    return pod


def _pod(template: Json, name: str, namespace: str) -> Json:
    meta = {
        key: value
        for key, value in (template.get("metadata") or {}).items()
        if key in ("labels", "annotations") and value
    }
    meta |= {"name": name, "namespace": namespace, "uid": f"simulated-{namespace}-{name}"}
    return {"kind": "Pod", "metadata": meta, "spec": dict(template["spec"]), "status": {"phase": "Pending"}}


def _admitted(pod: Json, workload: str, cluster: ClusterState, counting: Counting) -> NewPod:
    """The pod after admission: the API server's defaults that matter for scheduling, then our own rules."""
    refused = _set_priority(pod["spec"], cluster)
    read = _decoded(pod)
    if refused:
        return NewPod(pod, workload, refused)
    meta = pod["metadata"]
    if meta["namespace"] == _EXCLUDED:
        return NewPod(pod, workload)
    # A pod that was saved from a cluster may have a node.
    verdict = judge(read, counting, may_have_node=True)
    if verdict.refusals:
        return NewPod(pod, workload, "; ".join(refusal.message for refusal in verdict.refusals))
    opted_out = namespace_labels(cluster, meta["namespace"]).get(names.LABEL_ADMISSION) == "disabled"
    changes = conversion(read, counting) + ([] if opted_out else pointing(read))
    return NewPod(patched(pod, changes), workload)


def _decoded(pod: Json) -> SubmittedPod:
    try:
        return msgspec.convert(pod, SubmittedPod)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


def _set_priority(spec: Json, cluster: ClusterState) -> str:
    """Set the pod's priority as the API server does; returns why it refuses the pod, empty if it does not."""
    if spec.get("priority") is not None:
        return ""
    wanted = spec.get("priorityClassName")
    classes = {name_of(item): item for item in cluster.priority_classes}
    if wanted:
        if wanted in _SYSTEM_PRIORITIES and wanted not in classes:
            spec["priority"] = _SYSTEM_PRIORITIES[wanted]
            return ""
        if wanted not in classes:
            return f"no PriorityClass with name {wanted} was found"
        priority_class: Json | None = classes[wanted]
    else:
        priority_class = next((item for item in classes.values() if item.get("globalDefault")), None)
    if priority_class is not None:
        spec["priority"] = int(priority_class.get("value") or 0)
        spec.setdefault("preemptionPolicy", priority_class.get("preemptionPolicy") or "PreemptLowerPriority")
    return ""


def patched(item: Json, changes: Iterable[Mapping[str, Any]]) -> Json:
    """``item`` after a JSON patch that adds and removes members, as admission writes it; ``item`` is not changed."""
    changes = list(changes)
    if not changes:
        return item
    made: Json = msgspec.json.decode(msgspec.json.encode(item))
    for change in changes:
        *path, last = (step.replace("~1", "/").replace("~0", "~") for step in change["path"].split("/")[1:])
        place: Any = made
        for step in path:
            place = place[int(step)] if isinstance(place, list) else place[step]
        if change["op"] == "remove":
            del place[last]
        else:
            place[last] = change["value"]
    return made
