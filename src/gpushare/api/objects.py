"""Kubernetes objects, reduced to the fields that gpushare reads.

msgspec decodes JSON directly into these types and skips unknown fields, which keeps a list of 50,000 pods cheap. Field names follow the
API reference (core/v1).
"""

from typing import Any

import msgspec

from gpushare.api.quantity import Quantity

ResourceQuantities = dict[str, Quantity]


class OwnerReference(msgspec.Struct, gc=False):
    """An owner reference."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class ObjectMeta(msgspec.Struct, rename="camel", gc=False):
    """``metadata``: identity, labels, annotations. Timestamps are RFC 3339 texts."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None


class ContainerClaim(msgspec.Struct, gc=False):
    """A use of a ResourceClaim by a container: ``name`` is that of the pod's entry in ``resourceClaims``."""

    name: str = ""


class ResourceRequirements(msgspec.Struct, rename="camel", gc=False):
    """``resources`` of a container."""

    limits: ResourceQuantities | None = None
    requests: ResourceQuantities | None = None
    claims: list[ContainerClaim] | None = None


class VolumeMount(msgspec.Struct, rename="camel", gc=False):
    """A volume mount of a container."""

    mount_path: str = ""


class Container(msgspec.Struct, rename="camel", gc=False):
    """A container or init container; ``restart_policy`` ``Always`` on an init container makes it a sidecar."""

    name: str = ""
    resources: ResourceRequirements | None = None
    restart_policy: str | None = None
    volume_mounts: list[VolumeMount] | None = None


class NodeRequirement(msgspec.Struct, gc=False):
    """One of ``matchExpressions`` or ``matchFields``: a requirement on a node's label or name."""

    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class NodeSelectorTerm(msgspec.Struct, rename="camel", gc=False):
    """A node selector term: all expressions must match."""

    match_expressions: list[NodeRequirement] | None = None
    match_fields: list[NodeRequirement] | None = None


class NodeSelector(msgspec.Struct, rename="camel", gc=False):
    """Terms, one of which must match."""

    node_selector_terms: list[NodeSelectorTerm] | None = None


class PreferredTerm(msgspec.Struct, gc=False):
    """A preferred term."""

    preference: NodeSelectorTerm = msgspec.field(default_factory=NodeSelectorTerm)


class NodeAffinity(msgspec.Struct, rename="camel", gc=False):
    """``nodeAffinity`` of a pod."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: list[PreferredTerm] | None = None


class Affinity(msgspec.Struct, rename="camel", gc=False):
    """``affinity`` of a pod, node affinity only."""

    node_affinity: NodeAffinity | None = None

    @property
    def required(self) -> NodeSelector | None:
        """The required node affinity; ``None`` if any node will do."""
        node = self.node_affinity
        return None if node is None else node.required_during_scheduling_ignored_during_execution

    @property
    def terms(self) -> list[NodeSelectorTerm]:
        """Required terms, one of which must match; empty if any node will do."""
        return [] if self.required is None else self.required.node_selector_terms or []

    @property
    def preferences(self) -> list[NodeSelectorTerm]:
        """Preferred terms."""
        node = self.node_affinity
        preferred = None if node is None else node.preferred_during_scheduling_ignored_during_execution
        return [term.preference for term in preferred or ()]


class PodClaim(msgspec.Struct, rename="camel", gc=False):
    """An entry of ``resourceClaims`` of a pod: the name of a ResourceClaim, or of a template of which the pod gets its own."""

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodClaimStatus(msgspec.Struct, rename="camel", gc=False):
    """The ResourceClaim that was made for an entry with a template; ``None``: none is needed."""

    name: str = ""
    resource_claim_name: str | None = None


class ExtendedResourceMapping(msgspec.Struct, rename="camel", gc=False):
    """A container that uses the claim for extended resources."""

    container_name: str = ""


class ExtendedResourceClaim(msgspec.Struct, rename="camel", gc=False):
    """The ResourceClaim that kube-scheduler made for a pod's extended resources."""

    resource_claim_name: str = ""
    request_mappings: list[ExtendedResourceMapping] | None = None


class SchedulingGroup(msgspec.Struct, rename="camel", gc=False):
    """``schedulingGroup`` of a pod (Kubernetes 1.37): the PodGroup to which it belongs."""

    pod_group_name: str | None = None


class PodSpec(msgspec.Struct, rename="camel", gc=False):
    """``spec`` of a pod."""

    containers: list[Container] = []
    init_containers: list[Container] | None = None
    node_name: str = ""
    scheduler_name: str = ""
    priority: int | None = None
    preemption_policy: str | None = None
    scheduling_gates: list[Any] | None = None
    resources: ResourceRequirements | None = None
    """Pod-level resources, which replace the containers': CPU, memory and huge pages only."""
    overhead: ResourceQuantities | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: list[Any] | None = None
    """Input of ``taints.read_tolerations``."""
    resource_claims: list[PodClaim] | None = None
    scheduling_group: SchedulingGroup | None = None


class PodCondition(msgspec.Struct, rename="camel", gc=False):
    """One of a pod's conditions; ``status`` is True, False or Unknown, the time RFC 3339."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class PodStatus(msgspec.Struct, rename="camel", gc=False):
    """``status`` of a pod; ``phase`` is Pending, Running, Succeeded, Failed or Unknown."""

    phase: str = ""
    conditions: list[PodCondition] | None = None
    nominated_node_name: str = ""
    resource_claim_statuses: list[PodClaimStatus] | None = None
    extended_resource_claim_status: ExtendedResourceClaim | None = None


class Pod(msgspec.Struct, rename="camel", gc=False):
    """A pod."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def uses_claims(self) -> bool:
        """Whether it uses ResourceClaims, its own or one that was made for its extended resources."""
        return bool(self.spec.resource_claims) or self.status.extended_resource_claim_status is not None

    @property
    def pod_group(self) -> str:
        """``namespace/name`` of its PodGroup, a gang of kube-scheduler itself; empty if it is in none."""
        group = self.spec.scheduling_group
        return f"{self.metadata.namespace}/{group.pod_group_name}" if group and group.pod_group_name else ""

    @property
    def finished(self) -> bool:
        """Whether the pod has succeeded or failed, so that its resources are free."""
        return self.status.phase in ("Succeeded", "Failed")


class NodeAddress(msgspec.Struct, gc=False):
    """One of a node's addresses."""

    type: str = ""
    address: str = ""


class NodeCondition(msgspec.Struct, gc=False):
    """One of a node's conditions; ``status`` is True, False or Unknown."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class NodeStatus(msgspec.Struct, rename="camel", gc=False):
    """``status`` of a node."""

    capacity: ResourceQuantities | None = None
    allocatable: ResourceQuantities | None = None
    addresses: list[NodeAddress] | None = None
    conditions: list[NodeCondition] | None = None


class NodeSpec(msgspec.Struct, gc=False):
    """``spec`` of a node."""

    unschedulable: bool = False
    taints: list[Any] | None = None
    """Input of ``taints.read_taints``."""


class Node(msgspec.Struct, gc=False):
    """A node."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)

    def condition(self, kind: str) -> NodeCondition | None:
        """The node's condition of that type."""
        return next((one for one in self.status.conditions or () if one.type == kind), None)


class ObjectReference(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True):
    """A reference to an object, as in events."""

    kind: str
    name: str
    namespace: str = ""
    uid: str = ""
    api_version: str = "v1"


class ListMeta(
    msgspec.Struct, rename={"resource_version": "resourceVersion", "continue_": "continue"}, gc=False
):
    """``metadata`` of a list."""

    resource_version: str = ""
    continue_: str = ""


def node_reference(name: str) -> ObjectReference:
    """A reference to a node; like the kubelet's, with the name as UID."""
    return ObjectReference("Node", name, "", name)


def decode_pod(raw: bytes | dict[str, Any]) -> Pod:
    """A ``Pod`` from JSON text or a parsed object; raises ``msgspec.ValidationError`` on a wrong shape."""
    return msgspec.convert(raw, Pod) if isinstance(raw, dict) else _POD.decode(raw)


def decode_node(raw: bytes | dict[str, Any]) -> Node:
    """A ``Node`` from JSON text or a parsed object; raises ``msgspec.ValidationError`` on a wrong shape."""
    return msgspec.convert(raw, Node) if isinstance(raw, dict) else _NODE.decode(raw)


_POD = msgspec.json.Decoder(Pod)
_NODE = msgspec.json.Decoder(Node)
