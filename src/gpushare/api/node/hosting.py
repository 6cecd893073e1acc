"""Whether another node would fit a pod, as far as that can be decided without kube-scheduler. No I/O.

Checked are cordons and taints, node selectors, the number of pods and all resources, like kube-scheduler's NodeUnschedulable,
TaintToleration, NodeAffinity and NodeResourcesFit (source: k8s.io/kubernetes pkg/scheduler/framework/plugins). A pod with other
constraints (affinity, topology, volumes, ports, device claims) is refused: it must not be moved if it might fit nowhere.
"""

from collections.abc import Iterable
from fractions import Fraction
from typing import Any, Final

import msgspec

from gpushare.api.errors import InvalidQuantity
from gpushare.api.objects import Container, Node, NodeSpec, Pod, PodSpec, ResourceRequirements
from gpushare.api.quantity import parse_quantity
from gpushare.api.request.request import ContainerKind
from gpushare.api.taints import REPELLING_EFFECTS, Taint, Toleration

#: The resource that counts pods.
_PODS: Final = "pods"
#: Kinds of volumes that every node supports.
_PORTABLE_VOLUMES: Final = frozenset({"name", "configMap", "secret", "emptyDir", "downwardAPI", "projected"})


class GuestContainer(Container, rename="camel"):
    """A container with its ports."""

    ports: list[dict[str, Any]] | None = None


class GuestSpec(PodSpec, rename="camel"):
    """The requirements of a pod on its node."""

    containers: list[GuestContainer] = msgspec.field(default_factory=list)  # type: ignore[assignment]
    init_containers: list[GuestContainer] | None = None  # type: ignore[assignment]
    affinity: dict[str, Any] | None = None  # type: ignore[assignment]
    tolerations: list[Toleration] | None = None
    topology_spread_constraints: list[Any] | None = None
    volumes: list[dict[str, Any]] | None = None
    host_network: bool = False
    resource_claims: list[Any] | None = None


class Guest(Pod, rename="camel"):
    """A pod with all its requirements on its node."""

    spec: GuestSpec = msgspec.field(default_factory=GuestSpec)

    @property
    def is_particular(self) -> bool:
        """Whether it has requirements that are not checked here."""
        spec = self.spec
        return bool(
            spec.affinity
            or spec.topology_spread_constraints
            or spec.host_network
            or spec.resource_claims
            or spec.resources
            or any(volume.keys() - _PORTABLE_VOLUMES for volume in spec.volumes or ())
            or any(
                port.get("hostPort")
                for container in (*spec.containers, *(spec.init_containers or ()))
                for port in container.ports or ()
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
    """A node with unparsed taints, so that they can be written back unchanged."""

    spec: _TaintedSpec = msgspec.field(default_factory=_TaintedSpec)


def objection(guest: Guest, node: HostingNode, present: Iterable[Guest], *, new: bool) -> str:
    """Why ``node`` with the pods ``present`` would not fit ``guest``; empty if it would.

    ``new`` is false for the node on which it runs already, which meets its other requirements.
    """
    name = node.metadata.name
    if node.spec.unschedulable:
        return f"node {name} is cordoned"
    for taint in node.spec.taints or ():
        if taint.effect in REPELLING_EFFECTS and not any(
            toleration.covers(taint) for toleration in guest.spec.tolerations or ()
        ):
            return f"node {name} has the taint {taint.key}"
    if not new:
        return ""
    if guest.is_particular:
        return (
            f"it requests resources other than CPU and memory, and it is unknown whether node {name} has them"
        )
    labels = node.metadata.labels or {}
    missing = [key for key, value in (guest.spec.node_selector or {}).items() if labels.get(key) != value]
    if missing:
        return f"node {name} lacks the label {missing[0]} that the pod selects"
    try:
        return _lacking(guest, node, present)
    except InvalidQuantity as error:
        return f"what node {name} has cannot be read: {error}"


def _lacking(guest: Guest, node: HostingNode, present: Iterable[Guest]) -> str:
    used: dict[str, Fraction] = {}
    for pod in present:
        for resource, amount in _requests(pod).items():
            used[resource] = used.get(resource, Fraction(0)) + amount
    allocatable = node.status.allocatable or {}
    for resource, amount in _requests(guest).items():
        capacity = parse_quantity(allocatable.get(resource, 0), resource)
        if amount and used.get(resource, Fraction(0)) + amount > capacity:
            return f"node {node.metadata.name} has too little {resource}"
    return ""


def _requests(pod: Guest) -> dict[str, Fraction]:
    """The pod's request of each resource, including the resource ``pods``."""
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
    requests = {_PODS: Fraction(1)}
    for resource in {*together, *sidecars, *peak}:
        steady = together.get(resource, Fraction(0)) + sidecars.get(resource, Fraction(0))
        requests[resource] = max(steady, peak.get(resource, Fraction(0)))
    requests.update(_amounts(pod.spec.resources))
    for resource, text in (pod.spec.overhead or {}).items():
        requests[resource] = requests.get(resource, Fraction(0)) + parse_quantity(text, resource)
    return requests


def _amounts(resources: ResourceRequirements | None) -> dict[str, Fraction]:
    """Requests, or limits where there is no request."""
    if resources is None:
        return {}
    amounts = {**(resources.limits or {}), **(resources.requests or {})}
    return {resource: parse_quantity(text, resource) for resource, text in amounts.items()}


_GUEST = msgspec.json.Decoder(Guest)
_HOSTING = msgspec.json.Decoder(HostingNode)
_TAINTED = msgspec.json.Decoder(TaintedNode)


def decode_guest(raw: bytes) -> Guest:
    """A guest from a pod's JSON; raises ``msgspec.MsgspecError``."""
    return _GUEST.decode(raw)


def decode_hosting(raw: bytes) -> HostingNode:
    """A node from JSON; raises ``msgspec.MsgspecError``."""
    return _HOSTING.decode(raw)


def decode_tainted(raw: bytes) -> TaintedNode:
    """A node with unparsed taints from JSON; raises ``msgspec.MsgspecError``."""
    return _TAINTED.decode(raw)
