"""A cluster's state as it was read once: the objects that affect placement, reduced to the fields that do.

A snapshot is a ``List`` as written by ``kubectl get nodes,pods --all-namespaces -o json``, which can be read too. The one that
``--save`` writes also has ResourcePolicies, ElasticQuotaTrees, PriorityClasses, PodDisruptionBudgets, names of finished Jobs,
labels of namespaces, ResourceClaims without their parameters, their templates and DeviceClasses. Of pods it has neither commands nor environment, and only annotations that affect decisions, so that it
can be shared.
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
    "resources",
)
_CONTAINER: Final = ("name", "resources", "restartPolicy")
_POD_CLAIM: Final = ("name", "resourceClaimName", "resourceClaimTemplateName")
_DRA: Final = "resource.k8s.io/v1"
_PORT: Final = ("hostIP", "hostPort", "protocol")
_ENDS: Final = ("Complete", "Failed")
_FINISHED: Final = ("Succeeded", "Failed")
#: Prefixes of annotations that affect decisions. Others may be confidential.
_ANNOTATIONS: Final = (
    "gpushare.dev/",
    "gpushare.alibabacloud.com/",
    "scheduler.framework.gpushare.",
    "ALIYUN_COM_GPU_MEM_",
    names.ANN_DELETION_COST,
)


class ClusterState(msgspec.Struct, frozen=True):
    """Objects as parsed JSON, in the order read. Pods are those that have not finished, Jobs those that have."""

    nodes: tuple[Json, ...]
    pods: tuple[Json, ...] = ()
    policies: tuple[Json, ...] = ()
    quota_trees: tuple[Json, ...] = ()
    priority_classes: tuple[Json, ...] = ()
    namespaces: tuple[Json, ...] = ()
    budgets: tuple[Json, ...] = ()
    jobs: tuple[Json, ...] = ()
    claims: tuple[Json, ...] = ()
    claim_templates: tuple[Json, ...] = ()
    device_classes: tuple[Json, ...] = ()

    @property
    def waiting(self) -> list[Json]:
        """Pods without a node that are not terminating."""
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
    "ResourceClaim": "claims",
    "ResourceClaimTemplate": "claim_templates",
    "DeviceClass": "device_classes",
}


def state_of(items: Iterable[Any], subject: str) -> ClusterState:
    """The state that these objects make up; other kinds are ignored.

    Raises ``SimulateError``, naming ``subject`` (a file), for anything that is not an object, or not valid in the API.
    """
    items_by_field: dict[str, list[Json]] = {field: [] for field in KINDS.values()}
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
        if field == "pods" and (
            status_of(item).get("phase") in _FINISHED
            # For node autoscalers only: the pod that it stands for is there too.
            or spec_of(item).get("schedulerName") == names.PLACEHOLDER_SCHEDULER
        ):
            continue
        if field == "jobs" and not end_of_job(item):
            continue
        items_by_field[field].append(item)
    return ClusterState(**{field: tuple(listed) for field, listed in items_by_field.items()})


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
    """``state`` as a ``List``, without fields that affect no decision; ``read_snapshot`` leads to the same decisions from it."""
    read_annotations = _annotations_of_policies(state.policies)
    items = [
        *({"apiVersion": "v1", "kind": "Node", **_node(node)} for node in state.nodes),
        *({"apiVersion": "v1", "kind": "Pod", **_pod(pod, read_annotations)} for pod in state.pods),
        *(
            {
                "apiVersion": f"{names.POLICY_GROUP}/{names.POLICY_VERSION}",
                "kind": "ResourcePolicy",
                **_whole(policy),
            }
            for policy in state.policies
        ),
        *(
            {"apiVersion": names.QUOTA_GROUP, "kind": names.QUOTA_KIND, **_whole(tree)}
            for tree in state.quota_trees
        ),
        *(
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": name_of(priority_class)},
                **{
                    key: priority_class[key]
                    for key in ("value", "globalDefault", "preemptionPolicy")
                    if key in priority_class
                },
            }
            for priority_class in state.priority_classes
        ),
        *(
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": name_of(namespace), "labels": namespace["metadata"].get("labels") or {}},
            }
            for namespace in state.namespaces
        ),
        *(
            {
                "apiVersion": "policy/v1",
                "kind": "PodDisruptionBudget",
                "metadata": _meta(budget),
                "spec": spec_of(budget),
                "status": _selected(status_of(budget), ("disruptionsAllowed",)),
            }
            for budget in state.budgets
        ),
        *(
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": _selected(job["metadata"], ("name", "namespace")),
                "status": {"conditions": [{"type": end_of_job(job), "status": "True"}]},
            }
            for job in state.jobs
        ),
        *(
            {"apiVersion": _DRA, "kind": "ResourceClaim", "metadata": _meta(claim), **_claim(claim)}
            for claim in state.claims
        ),
        *(
            {
                "apiVersion": _DRA,
                "kind": "ResourceClaimTemplate",
                "metadata": _meta(template),
                "spec": _claim(spec_of(template)),
            }
            for template in state.claim_templates
        ),
        *(
            {
                "apiVersion": _DRA,
                "kind": "DeviceClass",
                "metadata": _meta(device_class),
                "spec": _selected(spec_of(device_class), ("selectors",)),
            }
            for device_class in state.device_classes
        ),
    ]
    document = {"apiVersion": "v1", "kind": "List", "items": items}
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def _selected(item: Mapping[str, Any], keys: Iterable[str]) -> Json:
    return {key: item[key] for key in keys if item.get(key) is not None}


def _meta(item: Json, read_annotations: Container[str] = ()) -> Json:
    """``read_annotations``: names of further annotations that affect decisions."""
    meta = _selected(item["metadata"], _META)
    if annotations := meta.get("annotations"):
        meta["annotations"] = {
            key: text
            for key, text in annotations.items()
            if key.startswith(_ANNOTATIONS) or key in read_annotations
        }
    return meta


def _annotations_of_policies(policies: Iterable[Json]) -> set[str]:
    """Names of the annotations by which ResourcePolicies distinguish pods."""
    return {
        name
        for policy in policies
        for unit in spec_of(policy).get("units") or ()
        if isinstance(unit, dict)
        for name in unit.get("podAnnotations") or ()
    }


def _whole(item: Json) -> Json:
    return {"metadata": _meta(item), **_selected(item, ("spec", "status"))}


def _claim(claim: Json) -> Json:
    """Requests and results of a claim, without parameters of drivers, which may be confidential."""
    devices = _selected(spec_of(claim).get("devices") or {}, ("requests", "constraints"))
    allocation = status_of(claim).get("allocation") or {}
    results = _selected(allocation.get("devices") or {}, ("results",))
    status = {"status": {"allocation": {"devices": results}}} if allocation else {}
    return {"spec": {"devices": devices}, **status}


def _node(node: Json) -> Json:
    status = _selected(status_of(node), ("capacity", "allocatable", "addresses"))
    return {
        "metadata": _meta(node),
        "spec": _selected(spec_of(node), ("unschedulable", "taints")),
        "status": status,
    }


def _pod(pod: Json, read_annotations: Container[str]) -> Json:
    spec = spec_of(pod)
    kept_spec = _selected(spec, _POD_SPEC)
    for place in ("containers", "initContainers"):
        if spec.get(place):
            kept_spec[place] = [_container(container) for container in spec[place]]
    # Without details: that there are some is reported as not simulated.
    claims = [
        volume
        for volume in spec.get("volumes") or ()
        if volume.get("persistentVolumeClaim") or volume.get("ephemeral")
    ]
    if claims:
        kept_spec["volumes"] = [
            {"name": volume["name"], "persistentVolumeClaim": {"claimName": "?"}} for volume in claims
        ]
    if spec.get("resourceClaims"):
        kept_spec["resourceClaims"] = [_selected(claim, _POD_CLAIM) for claim in spec["resourceClaims"]]
    status = _selected(
        status_of(pod), ("phase", "nominatedNodeName", "resourceClaimStatuses", "extendedResourceClaimStatus")
    )
    conditions = [
        condition
        for condition in status_of(pod).get("conditions") or ()
        if condition.get("type") == "PodScheduled"
    ]
    if conditions:
        status["conditions"] = [
            _selected(condition, ("type", "status", "lastTransitionTime")) for condition in conditions
        ]
    return {"metadata": _meta(pod, read_annotations), "spec": kept_spec, "status": status}


def _container(container: Json) -> Json:
    kept = _selected(container, _CONTAINER)
    ports = [_selected(port, _PORT) for port in container.get("ports") or () if port.get("hostPort")]
    return {**kept, "ports": ports} if ports else kept


def namespace_labels(state: ClusterState, name: str) -> Mapping[str, str]:
    """Labels of a namespace; empty if it was not read."""
    for namespace in state.namespaces:
        if name_of(namespace) == name:
            labels: Mapping[str, str] = namespace["metadata"].get("labels") or {}
            return labels
    return {}


def workload_of(pod: Json) -> str:
    """``NAMESPACE/Kind NAME`` of the pod's controller, a Deployment instead of its ReplicaSet; the pod itself without a controller."""
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
    """The condition with which a Job has ended (``Complete``, ``Failed``); empty if it has not."""
    conditions = status_of(job).get("conditions") or ()
    return next(
        (
            condition["type"]
            for condition in conditions
            if condition.get("type") in _ENDS and condition.get("status") == "True"
        ),
        "",
    )


def counting_of(state: ClusterState) -> Counting:
    """The units of the cluster: that of its nodes (1 GiB if none or several are reported), and its smallest GPU."""
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
