"""Whether another node would take a pod, as far as that can be said without kube-scheduler: pure.

Where a pod asks more of its node than what is checked here (affinity, topology, volumes, ports, claims of devices), that
is the objection: better none moved than one that finds no place. Checked are cordons and taints, node selectors, the
number of pods and every resource, as kube-scheduler's NodeUnschedulable, TaintToleration, NodeAffinity and NodeResourcesFit
do (source: k8s.io/kubernetes pkg/scheduler/framework/plugins).
"""

from collections.abc import Iterable
from fractions import Fraction
from typing import Any, Final

import msgspec

from gpushare.api.errors import InvalidQuantity
from gpushare.api.objects import Container, Node, NodeSpec, Pod, PodSpec, ResourceRequirements
from gpushare.api.quantity import parse_quantity
from gpushare.api.request.request import ContainerKind
from gpushare.api.taints import SHUTTING, Taint, Toleration

#: The resource that counts pods.
_PODS: Final = "pods"
#: Volumes that are on every node.
_ANYWHERE: Final = frozenset({"name", "configMap", "secret", "emptyDir", "downwardAPI", "projected"})


class GuestContainer(Container, rename="camel"):
    """A container with its ports."""

    ports: list[dict[str, Any]] | None = None


class GuestSpec(PodSpec, rename="camel"):
    """What a pod asks of its node."""

    containers: list[GuestContainer] = msgspec.field(default_factory=list)  # type: ignore[assignment]
    init_containers: list[GuestContainer] | None = None  # type: ignore[assignment]
    affinity: dict[str, Any] | None = None  # type: ignore[assignment]
    tolerations: list[Toleration] | None = None
    topology_spread_constraints: list[Any] | None = None
    volumes: list[dict[str, Any]] | None = None
    host_network: bool = False
    resource_claims: list[Any] | None = None


class Guest(Pod, rename="camel"):
    """A pod with all that it asks of its node."""

    spec: GuestSpec = msgspec.field(default_factory=GuestSpec)

    @property
    def is_particular(self) -> bool:
        """Whether it asks more of a node than what is checked here."""
        spec = self.spec
        return bool(
            spec.affinity
            or spec.topology_spread_constraints
            or spec.host_network
            or spec.resource_claims
            or spec.resources
            or any(volume.keys() - _ANYWHERE for volume in spec.volumes or ())
            or any(
                port.get("hostPort")
                for one in (*spec.containers, *(spec.init_containers or ()))
                for port in one.ports or ()
            )
        )


class _HostingSpec(NodeSpec):
    taints: list[Taint] | None = None


class HostingNode(Node):
    """A node with its taints."""

    spec: _HostingSpec = msgspec.field(default_factory=_HostingSpec)


class _TaintedSpec(NodeSpec):
    taints: list[dict[str, Any]] | None = None


class TaintedNode(Node):
    """A node with its taints as they stand, so that they can be written back."""

    spec: _TaintedSpec = msgspec.field(default_factory=_TaintedSpec)


def objection(guest: Guest, node: HostingNode, there: Iterable[Guest], *, new: bool) -> str:
    """Why ``node`` with the pods ``there`` would not take a pod like ``guest``; empty where it would.

    ``new`` is false for the node on which it runs already: what it asks of a node it has found there.
    """
    name = node.metadata.name
    if node.spec.unschedulable:
        return f"node {name} is cordoned"
    for taint in node.spec.taints or ():
        if taint.effect in SHUTTING and not any(one.covers(taint) for one in guest.spec.tolerations or ()):
            return f"node {name} has the taint {taint.key}"
    if not new:
        return ""
    if guest.is_particular:
        return f"it asks more of its node than memory and processors, whether node {name} has it is not known"
    labels = node.metadata.labels or {}
    missing = [key for key, value in (guest.spec.node_selector or {}).items() if labels.get(key) != value]
    if missing:
        return f"node {name} has not the label {missing[0]} that it selects"
    try:
        return _lacking(guest, node, there)
    except InvalidQuantity as error:
        return f"what node {name} has cannot be read: {error}"


def _lacking(guest: Guest, node: HostingNode, there: Iterable[Guest]) -> str:
    taken: dict[str, Fraction] = {}
    for pod in there:
        for resource, amount in _asked(pod).items():
            taken[resource] = taken.get(resource, Fraction(0)) + amount
    allocatable = node.status.allocatable or {}
    for resource, amount in _asked(guest).items():
        has = parse_quantity(allocatable.get(resource, 0), resource)
        if amount and taken.get(resource, Fraction(0)) + amount > has:
            return f"node {node.metadata.name} has too little {resource}"
    return ""


def _asked(pod: Guest) -> dict[str, Fraction]:
    """What the pod asks of each resource, itself among them."""
    together: dict[str, Fraction] = {}
    sidecars: dict[str, Fraction] = {}
    peak: dict[str, Fraction] = {}
    for container in pod.spec.init_containers or ():
        kind = ContainerKind.SIDECAR if container.restart_policy == "Always" else ContainerKind.INIT
        for resource, amount in _amounts(container.resources).items():
            before = sidecars.get(resource, Fraction(0))
            if kind is ContainerKind.SIDECAR:
                sidecars[resource] = before + amount
            else:
                peak[resource] = max(peak.get(resource, Fraction(0)), before + amount)
    for container in pod.spec.containers:
        for resource, amount in _amounts(container.resources).items():
            together[resource] = together.get(resource, Fraction(0)) + amount
    asked = {_PODS: Fraction(1)}
    for resource in {*together, *sidecars, *peak}:
        steady = together.get(resource, Fraction(0)) + sidecars.get(resource, Fraction(0))
        asked[resource] = max(steady, peak.get(resource, Fraction(0)))
    asked.update(_amounts(pod.spec.resources))
    for resource, text in (pod.spec.overhead or {}).items():
        asked[resource] = asked.get(resource, Fraction(0)) + parse_quantity(text, resource)
    return asked


def _amounts(resources: ResourceRequirements | None) -> dict[str, Fraction]:
    """Requests, and limits where only these are set."""
    if resources is None:
        return {}
    asked = {**(resources.limits or {}), **(resources.requests or {})}
    return {resource: parse_quantity(text, resource) for resource, text in asked.items()}


_GUEST = msgspec.json.Decoder(Guest)
_HOSTING = msgspec.json.Decoder(HostingNode)
_TAINTED = msgspec.json.Decoder(TaintedNode)


def decode_guest(raw: bytes) -> Guest:
    """Raises ``msgspec.MsgspecError`` where it is none."""
    return _GUEST.decode(raw)


def decode_hosting(raw: bytes) -> HostingNode:
    """Raises ``msgspec.MsgspecError`` where it is none."""
    return _HOSTING.decode(raw)


def decode_tainted(raw: bytes) -> TaintedNode:
    """Raises ``msgspec.MsgspecError`` where it is none."""
    return _TAINTED.decode(raw)
