"""A cluster as it was read once: the objects that decide where pods go, and nothing else of them.

A snapshot is a ``List`` as ``kubectl get nodes,pods --all-namespaces -o json`` writes it, which can be read too. The one that
``--save`` writes has ResourcePolicies, ElasticQuotaTrees, PriorityClasses, PodDisruptionBudgets, names of Jobs that have ended and the labels of namespaces besides, and of pods neither
commands nor environment, and no annotations but those by which something is decided: it may be handed to others.
"""

from collections.abc import Container, Iterable, Mapping
from typing import Any, Final

import msgspec

from gpushare.api import names
from gpushare.api.errors import ModelError
from gpushare.api.json_objects import Json, name_of, namespace_of, spec_of, status_of
from gpushare.api.node.device import described_devices
from gpushare.api.objects import decode_node
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.unit_conversion import Counting
from gpushare.simulate.errors import SimulateError
from gpushare.simulate.input.fields import check

_META: Final = (
    "name",
    "namespace",
    "uid",
    "labels",
    "annotations",
    "creationTimestamp",
    "deletionTimestamp",
    "generation",
    "ownerReferences",
)
_POD_SPEC: Final = (
    "nodeName",
    "schedulerName",
    "priority",
    "priorityClassName",
    "preemptionPolicy",
    "schedulingGates",
    "overhead",
    "nodeSelector",
    "affinity",
    "tolerations",
    "topologySpreadConstraints",
)
_CONTAINER: Final = ("name", "resources", "restartPolicy")
_PORT: Final = ("hostIP", "hostPort", "protocol")
_ENDS: Final = ("Complete", "Failed")
_FINISHED: Final = ("Succeeded", "Failed")
#: Annotations by which something is decided begin so; whatever else there is may be of interest to nobody but its owner.
_ANNOTATIONS: Final = (
    "gpushare.dev/",
    "gpushare.alibabacloud.com/",
    "scheduler.framework.gpushare.",
    "ALIYUN_COM_GPU_MEM_",
    names.ANN_DELETION_COST,
)


class ClusterState(msgspec.Struct, frozen=True):
    """Objects as parsed JSON, in the order read. Pods are those that have not ended, and Jobs those that have."""

    nodes: tuple[Json, ...]
    pods: tuple[Json, ...] = ()
    policies: tuple[Json, ...] = ()
    quota_trees: tuple[Json, ...] = ()
    priority_classes: tuple[Json, ...] = ()
    namespaces: tuple[Json, ...] = ()
    budgets: tuple[Json, ...] = ()
    jobs: tuple[Json, ...] = ()

    @property
    def waiting(self) -> list[Json]:
        """Pods without a node that are not on their way out."""
        return [
            pod
            for pod in self.pods
            if not spec_of(pod).get("nodeName") and not pod["metadata"].get("deletionTimestamp")
        ]


#: Kind → field of ``ClusterState``.
KINDS: Final[Mapping[str, str]] = {
    "Node": "nodes",
    "Pod": "pods",
    "ResourcePolicy": "policies",
    names.QUOTA_KIND: "quota_trees",
    "PriorityClass": "priority_classes",
    "Namespace": "namespaces",
    "PodDisruptionBudget": "budgets",
    "Job": "jobs",
}


def state_of(items: Iterable[Any], subject: str) -> ClusterState:
    """The state that these objects make up; kinds that do not matter are passed over.

    Raises ``SimulateError``, naming ``subject`` (a file), for what is no object, or not as the API has it.
    """
    found: dict[str, list[Json]] = {field: [] for field in KINDS.values()}
    for number, item in enumerate(items, 1):
        kind = item.get("kind") if isinstance(item, dict) else None
        if not isinstance(kind, str) or not kind:
            raise SimulateError(subject, f"item {number} is no Kubernetes object: it has no kind")
        field = KINDS.get(kind)
        if field is None:
            continue
        if not isinstance(item.get("metadata"), dict) or not isinstance(item["metadata"].get("name"), str):
            raise SimulateError(subject, f"item {number} ({kind}) has no metadata.name")
        check(item, subject)
        if field == "pods" and status_of(item).get("phase") in _FINISHED:
            continue
        if field == "jobs" and not end_of_job(item):
            continue
        found[field].append(item)
    return ClusterState(**{field: tuple(listed) for field, listed in found.items()})


def read_snapshot(raw: bytes, subject: str) -> ClusterState:
    """The state in a snapshot's JSON; raises ``SimulateError``."""
    try:
        read = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SimulateError(
            subject,
            f"is no JSON ({error}); write one with `gpushare simulate --save FILE`, or `kubectl get nodes,pods -A -o json`",
        ) from None
    items = read.get("items") if isinstance(read, dict) else None
    if not isinstance(items, list):
        raise SimulateError(
            subject,
            "is no List; write one with `gpushare simulate --save FILE`, or `kubectl get nodes,pods -A -o json`",
        )
    state = state_of(items, subject)
    if not state.nodes:
        raise SimulateError(
            subject, "has no nodes; name them too: `kubectl get nodes,pods --all-namespaces -o json`"
        )
    return state


def snapshot_of(state: ClusterState) -> bytes:
    """``state`` as a ``List``, without what decides nothing; ``read_snapshot`` gives the same decisions from it."""
    asked = _asked_of_pods(state.policies)
    items = [
        *({"apiVersion": "v1", "kind": "Node", **_node(node)} for node in state.nodes),
        *({"apiVersion": "v1", "kind": "Pod", **_pod(pod, asked)} for pod in state.pods),
        *(
            {
                "apiVersion": f"{names.POLICY_GROUP}/{names.POLICY_VERSION}",
                "kind": "ResourcePolicy",
                **_whole(one),
            }
            for one in state.policies
        ),
        *(
            {"apiVersion": names.QUOTA_GROUP, "kind": names.QUOTA_KIND, **_whole(one)}
            for one in state.quota_trees
        ),
        *(
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": name_of(one)},
                **{key: one[key] for key in ("value", "globalDefault", "preemptionPolicy") if key in one},
            }
            for one in state.priority_classes
        ),
        *(
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": name_of(one), "labels": one["metadata"].get("labels") or {}},
            }
            for one in state.namespaces
        ),
        *(
            {
                "apiVersion": "policy/v1",
                "kind": "PodDisruptionBudget",
                "metadata": _meta(one),
                "spec": spec_of(one),
                "status": _some(status_of(one), ("disruptionsAllowed",)),
            }
            for one in state.budgets
        ),
        *(
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": _some(one["metadata"], ("name", "namespace")),
                "status": {"conditions": [{"type": end_of_job(one), "status": "True"}]},
            }
            for one in state.jobs
        ),
    ]
    told = {"apiVersion": "v1", "kind": "List", "items": items}
    return msgspec.json.format(msgspec.json.encode(told), indent=1) + b"\n"


def _some(item: Mapping[str, Any], keys: Iterable[str]) -> Json:
    return {key: item[key] for key in keys if item.get(key) is not None}


def _meta(item: Json, asked: Container[str] = ()) -> Json:
    """``asked``: names of annotations that decide something besides ours."""
    meta = _some(item["metadata"], _META)
    if annotations := meta.get("annotations"):
        meta["annotations"] = {
            key: text for key, text in annotations.items() if key.startswith(_ANNOTATIONS) or key in asked
        }
    return meta


def _asked_of_pods(policies: Iterable[Json]) -> set[str]:
    """Names of the annotations by which ResourcePolicies tell pods apart."""
    return {
        name
        for policy in policies
        for unit in spec_of(policy).get("units") or ()
        if isinstance(unit, dict)
        for name in unit.get("podAnnotations") or ()
    }


def _whole(item: Json) -> Json:
    return {"metadata": _meta(item), **_some(item, ("spec", "status"))}


def _node(node: Json) -> Json:
    status = _some(status_of(node), ("capacity", "allocatable", "addresses"))
    return {
        "metadata": _meta(node),
        "spec": _some(spec_of(node), ("unschedulable", "taints")),
        "status": status,
    }


def _pod(pod: Json, asked: Container[str]) -> Json:
    spec = spec_of(pod)
    told = _some(spec, _POD_SPEC)
    for place in ("containers", "initContainers"):
        if spec.get(place):
            told[place] = [_container(one) for one in spec[place]]
    # Not what they are: that there are some is told as not looked at.
    claims = [
        one for one in spec.get("volumes") or () if one.get("persistentVolumeClaim") or one.get("ephemeral")
    ]
    if claims:
        told["volumes"] = [
            {"name": one["name"], "persistentVolumeClaim": {"claimName": "?"}} for one in claims
        ]
    if spec.get("resourceClaims"):
        told["resourceClaims"] = [_some(one, ("name",)) for one in spec["resourceClaims"]]
    status = _some(status_of(pod), ("phase", "nominatedNodeName"))
    conditions = [one for one in status_of(pod).get("conditions") or () if one.get("type") == "PodScheduled"]
    if conditions:
        status["conditions"] = [_some(one, ("type", "status", "lastTransitionTime")) for one in conditions]
    return {"metadata": _meta(pod, asked), "spec": told, "status": status}


def _container(container: Json) -> Json:
    told = _some(container, _CONTAINER)
    ports = [_some(one, _PORT) for one in container.get("ports") or () if one.get("hostPort")]
    return {**told, "ports": ports} if ports else told


def namespace_labels(state: ClusterState, name: str) -> Mapping[str, str]:
    """Labels of a namespace; none where it was not read."""
    for one in state.namespaces:
        if name_of(one) == name:
            labels: Mapping[str, str] = one["metadata"].get("labels") or {}
            return labels
    return {}


def workload_of(pod: Json) -> str:
    """``NAMESPACE/Kind NAME`` of what made the pod, without a Deployment's own ReplicaSet; the pod itself where nothing did."""
    namespace = namespace_of(pod)
    for owner in pod["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            kind, name = str(owner.get("kind")), str(owner.get("name"))
            made = (pod["metadata"].get("labels") or {}).get("pod-template-hash")
            if kind == "ReplicaSet" and made and name.endswith(f"-{made}"):
                kind, name = "Deployment", name.removesuffix(f"-{made}")
            return f"{namespace}/{kind} {name}"
    return f"{namespace}/Pod {name_of(pod)}"


def end_of_job(job: Json) -> str:
    """The condition by which a Job says that it has ended (``Complete``, ``Failed``); empty where it has not."""
    conditions = status_of(job).get("conditions") or ()
    return next(
        (one["type"] for one in conditions if one.get("type") in _ENDS and one.get("status") == "True"), ""
    )


def counting_of(state: ClusterState) -> Counting:
    """How the cluster counts: the unit of its nodes (1 GiB where they say none, or several), and its smallest card."""
    units, cards = set(), []
    for node in state.nodes:
        try:
            described = described_devices(decode_node(node))
        except ModelError:
            continue
        if described is not None:
            units.add(described[1])
            cards += [device.total_mib for device in described[2]]
    return Counting(units.pop() if len(units) == 1 else MemoryUnit.GIB, min(cards, default=0))
