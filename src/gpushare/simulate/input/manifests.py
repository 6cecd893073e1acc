"""Manifests as a user would apply them, and the pods that their controllers would make of them.

Admission has its say first, as on a cluster: requests in people's units become units, pods that name no scheduler are pointed to
ours, and what can never be served is refused in admission's own words.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from gpushare.admission.rules.request_rules import judge, pointing
from gpushare.admission.rules.unit_rules import conversion
from gpushare.api import names
from gpushare.api.json_objects import Json, key_of, name_of, spec_of
from gpushare.api.objects import Pod, decode_pod
from gpushare.api.request.unit_conversion import Counting
from gpushare.reasons.mistakes.pods import mistakes_except_nodes
from gpushare.reasons.mistakes.selectors import mistyped
from gpushare.simulate.errors import SimulateError
from gpushare.simulate.input.fields import check, check_workload, unreadable
from gpushare.simulate.input.replicas import (
    LABEL_POD_NAME,
    There,
    counted,
    differences,
    is_leaving,
    missing,
    pods_by_workload,
)
from gpushare.simulate.snapshot import ClusterState, end_of_job, namespace_labels, state_of

#: The most pods that one set of manifests may make.
MOST_PODS: Final = 100_000
_KIND_OF_STATE: Final = (
    "ResourcePolicy",
    names.QUOTA_KIND,
    "PriorityClass",
    "Namespace",
    "PodDisruptionBudget",
)
_EXCLUDED: Final = "kube-system"
_SYSTEM_PRIORITIES: Final = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


class Wished(msgspec.Struct, frozen=True):
    """A pod that is to come. ``refused`` says why admission does not let it in; empty where it does."""

    pod: Json
    workload: str
    refused: str = ""


class Manifests(msgspec.Struct, frozen=True):
    """What was read: pods in the order in which they come, objects that decide for others, and what was passed over.

    ``there`` are those workloads of which pods are in the cluster already. ``warnings`` are those of admission, each after its object.
    """

    pods: tuple[Wished, ...]
    state: ClusterState
    passed_over: tuple[str, ...] = ()
    there: tuple[There, ...] = ()
    warnings: tuple[str, ...] = ()


def manifests_of(
    documents: Iterable[tuple[str, Json]],
    cluster: ClusterState,
    counting: Counting,
    namespace: str = "default",
) -> Manifests:
    """What these objects, each with the name of its file, come to in ``cluster``; raises ``SimulateError``.

    Objects that name no namespace go to ``namespace``. Of a workload only those pods are made that the cluster lacks.
    """
    listed = list(documents)
    for subject, document in listed:
        if not isinstance(document.get("metadata"), dict) or not document["metadata"].get("name"):
            raise SimulateError(subject, f"a {document['kind']} has no metadata.name")
        if document["kind"] in _KIND_OF_STATE:
            check(_in_namespace(document, namespace), subject)
    beside = [
        _in_namespace(document, namespace) for _, document in listed if document["kind"] in _KIND_OF_STATE
    ]
    more = state_of(beside, "manifests")
    making = _Making(cluster, joined(cluster, more), counting)
    pods: list[Wished] = []
    passed_over: list[str] = []
    for subject, document in listed:
        kind = document["kind"]
        if kind in _KIND_OF_STATE:
            continue
        if kind not in _COUNTS:
            if meant := _meant(kind):
                raise SimulateError(f"{subject}: {kind} {name_of(document)}", f"is no kind; write {meant}")
            passed_over.append(f"{kind} {name_of(document)}")
            continue
        try:
            check_workload(document)
            for one in making.of(_in_namespace(document, namespace)):
                if len(pods) == MOST_PODS:
                    raise SimulateError(subject, f"more than {MOST_PODS} pods; simulate them in parts")
                making.once(one, subject)
                pods.append(one)
        except (TypeError, AttributeError, KeyError, ValueError) as error:
            raise unreadable(document, subject, error) from None
    return Manifests(tuple(pods), more, tuple(passed_over), tuple(making.there), tuple(making.warnings))


def joined(cluster: ClusterState, more: ClusterState) -> ClusterState:
    """``cluster`` with what manifests bring, which takes the place of what has the same name."""
    found: dict[str, tuple[Json, ...]] = {}
    for field in ("policies", "quota_trees", "priority_classes", "namespaces", "budgets"):
        new: tuple[Json, ...] = getattr(more, field)
        keys = {_key(one) for one in new}
        found[field] = (*(one for one in getattr(cluster, field) if _key(one) not in keys), *new)
    return msgspec.structs.replace(cluster, **found)


def _key(item: Json) -> tuple[str, str]:
    return str(item["metadata"].get("namespace") or ""), name_of(item)


def _in_namespace(document: Json, namespace: str) -> Json:
    meta = document["metadata"]
    if document["kind"] in ("PriorityClass", "Namespace"):
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


#: Kinds of others that look like one of those that are read.
_ALIKE: Final = ("ElasticQuota",)


def _meant(kind: str) -> str:
    """The kind that is meant where ``kind`` is misspelt; empty where it is another."""
    from difflib import get_close_matches

    known = {one.lower(): one for one in (*_COUNTS, *_KIND_OF_STATE)}
    if kind in _ALIKE:
        return ""
    return next((known[one] for one in get_close_matches(kind.lower(), known, 1, 0.85)), "")


class _Making:
    """Makes the pods of one object after the other, into a ``cluster`` whose rules are those of ``known``."""

    def __init__(self, cluster: ClusterState, known: ClusterState, counting: Counting) -> None:
        self._known = known
        self._counting = counting
        self._pods = pods_by_workload(cluster.pods)
        self._taken = set(map(key_of, cluster.pods))
        self._ended = {key_of(job): end_of_job(job) for job in cluster.jobs}
        self._made: dict[str, tuple[str, str]] = {}
        self.there: list[There] = []
        self.warnings: list[str] = []

    def of(self, document: Json) -> Iterator[Wished]:
        """The pods that the object's controller makes, as admission leaves them."""
        kind, meta = document["kind"], document["metadata"]
        workload = f"{meta['namespace']}/{kind} {meta['name']}"
        first = (
            _pod(document, str(meta["name"]), meta["namespace"]) if kind == "Pod" else _pod_of(document, 0)
        )
        if meta["namespace"] != _EXCLUDED:
            pod = _decoded(first)
            slips = (*mistakes_except_nodes(pod, self._counting.unit), *mistyped(pod))
            self.warnings += [f"{workload}: {text}" for text in slips]
        if kind == "Pod":
            yield self._admitted(first, workload)
            return
        asked = _COUNTS[kind](spec_of(document))
        there = counted(kind, self._pods.get(workload, ()))
        coming = 0
        for number in missing(document, asked, there, self._taken):
            coming += 1
            yield self._admitted(_pod_of(document, number), workload)
        ended = self._ended.get(key_of(document), "") if kind == "Job" else ""
        if there or ended:
            leaving = sum(map(is_leaving, there))
            differs = differences(self._admitted(first, workload).pod, there)
            self.there.append(There(workload, asked, len(there), coming, leaving, differs, ended))

    def once(self, one: Wished, subject: str) -> None:
        """Note that a pod comes from ``subject`` (a file); raises ``SimulateError`` where one of its name comes already."""
        key = key_of(one.pod)
        if key not in self._made:
            self._made[key] = one.workload, subject
            return
        workload, first = self._made[key]
        if workload != one.workload:
            raise SimulateError(
                f"pod {key}",
                f"comes of {workload} in {first} and of {one.workload} in {subject}; give one of these another name",
            )
        where = f"twice in {first}" if first == subject else f"in {first} and in {subject}"
        raise SimulateError(workload, f"is {where}; leave one out, or give it another name")

    def _admitted(self, pod: Json, workload: str) -> Wished:
        return _admitted(pod, workload, self._known, self._counting)


def _pod_of(document: Json, number: int) -> Json:
    """The pod that the object's controller makes, numbered as a StatefulSet's are."""
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


def _admitted(pod: Json, workload: str, cluster: ClusterState, counting: Counting) -> Wished:
    """The pod as admission leaves it: API server's defaults that scheduling looks at, then our own rules."""
    refused = _give_priority(pod["spec"], cluster)
    read = _decoded(pod)
    if refused:
        return Wished(pod, workload, refused)
    meta = pod["metadata"]
    if meta["namespace"] == _EXCLUDED:
        return Wished(pod, workload)
    # One that was read from a cluster has its node.
    verdict = judge(read, counting, may_have_node=True)
    if verdict.refusals:
        return Wished(pod, workload, "; ".join(one.message for one in verdict.refusals))
    opted_out = namespace_labels(cluster, meta["namespace"]).get(names.LABEL_ADMISSION) == "disabled"
    changes = conversion(read, counting) + ([] if opted_out else pointing(read))
    return Wished(patched(pod, changes), workload)


def _decoded(pod: Json) -> Pod:
    try:
        return decode_pod(pod)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


def _give_priority(spec: Json, cluster: ClusterState) -> str:
    """Write the pod's priority as the API server does; why it refuses the pod, empty where it does not."""
    if spec.get("priority") is not None:
        return ""
    wanted = spec.get("priorityClassName")
    classes = {name_of(one): one for one in cluster.priority_classes}
    if wanted:
        if wanted in _SYSTEM_PRIORITIES and wanted not in classes:
            spec["priority"] = _SYSTEM_PRIORITIES[wanted]
            return ""
        if wanted not in classes:
            return f"no PriorityClass with name {wanted} was found"
        found: Json | None = classes[wanted]
    else:
        found = next((one for one in classes.values() if one.get("globalDefault")), None)
    if found is not None:
        spec["priority"] = int(found.get("value") or 0)
        spec.setdefault("preemptionPolicy", found.get("preemptionPolicy") or "PreemptLowerPriority")
    return ""


def patched(item: Json, changes: Iterable[Mapping[str, Any]]) -> Json:
    """``item`` after a JSON patch of additions and removals of members, which is what admission writes; ``item`` stays."""
    changes = list(changes)
    if not changes:
        return item
    made: Json = msgspec.json.decode(msgspec.json.encode(item))
    for change in changes:
        *way, last = (step.replace("~1", "/").replace("~0", "~") for step in change["path"].split("/")[1:])
        place: Any = made
        for step in way:
            place = place[int(step)] if isinstance(place, list) else place[step]
        if change["op"] == "remove":
            del place[last]
        else:
            place[last] = change["value"]
    return made
