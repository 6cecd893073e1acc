"""The fields that a simulation reads of whole objects, with their types in the API.

An API server rejects everything else, but files may contain anything. What is validated here is used without checks afterwards.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

import msgspec

from gpushare.api import names
from gpushare.api.allocation.resource_claim import DeviceClass, ResourceClaim
from gpushare.api.crd.elastic_quota_tree import decode_quota_tree
from gpushare.api.crd.resource_policy import decode_policy
from gpushare.api.errors import ModelError
from gpushare.api.json_objects import Json, key_of
from gpushare.api.objects import decode_node, decode_pod
from gpushare.api.quantity import Quantity
from gpushare.simulate.engine.budgets import budget_of
from gpushare.simulate.errors import SimulateError

Labels = dict[str, str]
Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]
Port = Annotated[int, msgspec.Meta(ge=0, lt=2**16)]


class _Read(msgspec.Struct, rename="camel"):
    """A null stands for an absent value."""


class _Owner(_Read):
    kind: str | None = None
    name: str | None = None
    controller: bool | None = None


class _Meta(_Read):
    name: str
    namespace: str | None = None
    uid: str | None = None
    labels: Labels | None = None
    annotations: Labels | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    owner_references: list[_Owner] | None = None


class _MetaOfTemplate(_Read):
    labels: Labels | None = None
    annotations: Labels | None = None


class _Expression(_Read):
    key: str | None = None
    operator: str | None = None
    values: list[str] | None = None


class _Term(_Read):
    match_expressions: list[_Expression] | None = None
    match_fields: list[_Expression] | None = None


class _Terms(_Read):
    node_selector_terms: list[_Term] | None = None


class _Preferred(_Read):
    weight: Int32
    preference: _Term | None = None


class _NodeAffinity(_Read, rename="camel"):
    required: _Terms | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    preferred: list[_Preferred] | None = msgspec.field(
        default=None, name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class _PodAffinity(_Read):
    required: list[dict[str, Any]] | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )


class _Affinity(_Read):
    node_affinity: _NodeAffinity | None = None
    pod_affinity: _PodAffinity | None = None
    pod_anti_affinity: _PodAffinity | None = None


class _Toleration(_Read):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None


class _Port(_Read):
    host_port: Port | None = None
    host_ip: str | None = msgspec.field(default=None, name="hostIP")
    protocol: str | None = None


class _Container(_Read):
    ports: list[_Port] | None = None


class _Volume(_Read):
    name: str | None = None
    persistent_volume_claim: dict[str, Any] | None = None
    ephemeral: dict[str, Any] | None = None


class _Claim(_Read):
    name: str | None = None
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class _PodSpec(_Read):
    node_name: str | None = None
    scheduler_name: str | None = None
    priority: Int32 | None = None
    priority_class_name: str | None = None
    preemption_policy: str | None = None
    node_selector: Labels | None = None
    affinity: _Affinity | None = None
    tolerations: list[_Toleration] | None = None
    topology_spread_constraints: list[dict[str, Any]] | None = None
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    volumes: list[_Volume] | None = None
    resource_claims: list[_Claim] | None = None


class _Condition(_Read):
    type: str | None = None
    status: str | None = None


class _PodStatus(_Read):
    phase: str | None = None
    conditions: list[_Condition] | None = None


class _Pod(_Read):
    metadata: _Meta
    spec: _PodSpec | None = None
    status: _PodStatus | None = None


class _Template(_Read):
    metadata: _MetaOfTemplate | None = None
    spec: _PodSpec | None = None


class _Ordinals(_Read):
    start: Int32 | None = None


class _WorkloadSpec(_Read):
    template: _Template | None = None
    ordinals: _Ordinals | None = None


class _Workload(_Read):
    metadata: _Meta
    spec: _WorkloadSpec | None = None


class _NodeSpec(_Read):
    unschedulable: bool | None = None
    taints: list[_Toleration] | None = None


class _NodeStatus(_Read):
    allocatable: dict[str, Quantity] | None = None


class _Node(_Read):
    metadata: _Meta
    spec: _NodeSpec | None = None
    status: _NodeStatus | None = None


class _Named(_Read):
    metadata: _Meta


class _PriorityClass(_Read):
    metadata: _Meta
    value: Int32 | None = None
    global_default: bool | None = None
    preemption_policy: str | None = None


class _JobStatus(_Read):
    conditions: list[_Condition] | None = None


class _Job(_Read):
    metadata: _Meta
    status: _JobStatus | None = None


_KINDS: Final[Mapping[str, type[_Read]]] = {
    "Job": _Job,
    "Node": _Node,
    "Pod": _Pod,
    "PriorityClass": _PriorityClass,
}


def claim_of(item: Json) -> ResourceClaim:
    """A ResourceClaim; raises ``msgspec.ValidationError``."""
    return msgspec.convert(item, ResourceClaim)


def claim_template_of(item: Json) -> ResourceClaim:
    """The claim that a ResourceClaimTemplate makes, with the template's name; raises ``msgspec.ValidationError``."""
    return msgspec.convert(
        {"metadata": item["metadata"], "spec": (item.get("spec") or {}).get("spec") or {}}, ResourceClaim
    )


def _policy(item: Json) -> None:
    try:
        decode_policy(msgspec.json.encode(item))
    except ModelError:
        return  # its contents are validated by the scheduler


#: Further decoders for kinds that need more than their fields checked.
_READERS: Final[Mapping[str, Callable[[Json], object]]] = {
    "Node": decode_node,
    "Pod": decode_pod,
    "ResourcePolicy": _policy,
    names.QUOTA_KIND: lambda item: decode_quota_tree(msgspec.json.encode(item)),
    "PodDisruptionBudget": budget_of,
    "ResourceClaim": claim_of,
    "ResourceClaimTemplate": claim_template_of,
    "DeviceClass": lambda item: msgspec.convert(item, DeviceClass),
}


def check(item: Json, subject: str) -> None:
    """Check that everything that is read of an object with a kind has the API's type.

    Raises ``SimulateError``, which names ``subject`` (a file) and the object.
    """
    try:
        msgspec.convert(item, _KINDS.get(item["kind"], _Named))
        if reader := _READERS.get(item["kind"]):
            reader(item)
    except ValueError as error:
        raise unreadable(item, subject, error) from None


def check_workload(item: Json) -> None:
    """The same for workloads; raises ``msgspec.ValidationError``."""
    msgspec.convert(item, _Pod if item["kind"] == "Pod" else _Workload)


def unreadable(item: Json, subject: str, error: Exception) -> SimulateError:
    """The error that a named object cannot be read, and why."""
    kind = item["kind"]
    advice = _unquoted(item) or f"see `kubectl explain {kind}`"
    return SimulateError(f"{subject}: {kind} {key_of(item)}", f"cannot be read ({error}); {advice}")


def _unquoted(item: Json) -> str:
    """Which label or annotation is not a text, and what to write; empty if all are."""
    spec = item.get("spec")
    template = spec.get("template") if isinstance(spec, dict) else None
    for owner in (item, template):
        meta = owner.get("metadata") if isinstance(owner, dict) else None
        for place in ("labels", "annotations"):
            pairs = meta.get(place) if isinstance(meta, dict) else None
            for key, value in pairs.items() if isinstance(pairs, dict) else ():
                if isinstance(value, bool | int | float):
                    text = str(value).lower() if isinstance(value, bool) else value
                    return f'in {place}, put the value of {key} in quotes: "{text}"'
    return ""
