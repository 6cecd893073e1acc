"""Allocations of our devices to a ResourceClaim (``resource.k8s.io/v1``), read from its status. No I/O.

Unknown fields and results of other drivers are skipped.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from gpushare.api import names
from gpushare.api.allocation.allocation import GpuShare
from gpushare.api.errors import InvalidQuantity
from gpushare.api.node.device import Device
from gpushare.api.objects import Pod
from gpushare.api.quantity import parse_amount

#: Capacities of a GPU that claims consume.
MEMORY: Final = "memory"
COMPUTE: Final = "compute"
SHARES: Final = "shares"

_MIB: Final = 1 << 20


class Consumed(NamedTuple):
    """Memory and compute that an allocation consumes of a GPU; 0 percent: compute is not limited."""

    mib: int
    core_percent: int


class AllocationResult(msgspec.Struct, frozen=True, rename="camel"):
    """A device that was allocated to a request."""

    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool | None = None
    share_id: str | None = msgspec.field(default=None, name="shareID")
    consumed_capacity: dict[str, str] | None = None

    def consumed(self) -> Consumed:
        """The consumed memory and compute; raises ``InvalidQuantity``."""
        capacity = self.consumed_capacity or {}
        mib = parse_amount(capacity.get(MEMORY, "0"), MEMORY) // _MIB
        return Consumed(mib, parse_amount(capacity.get(COMPUTE, "0"), COMPUTE))


class OpaqueParameters(msgspec.Struct, frozen=True):
    """Parameters for one driver, as they are in the JSON."""

    driver: str = ""
    parameters: Any = None


class Configuration(msgspec.Struct, frozen=True):
    """Parameters; ``requests``: names of the requests that they apply to, or none for all."""

    requests: list[str] | None = None
    opaque: OpaqueParameters | None = None


class AllocatedDevices(msgspec.Struct, frozen=True):
    """The allocation's results, and the parameters of classes and claim."""

    results: list[AllocationResult] | None = None
    config: list[Configuration] | None = None


class _Allocation(msgspec.Struct, frozen=True):
    devices: AllocatedDevices = msgspec.field(default_factory=AllocatedDevices)


class Consumer(msgspec.Struct, frozen=True):
    """An object that may use the claim, usually a pod."""

    resource: str = ""
    name: str = ""


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    allocation: _Allocation | None = None
    reserved_for: list[Consumer] | None = None


class _Capacity(msgspec.Struct, frozen=True):
    requests: dict[str, str] | None = None


class DeviceRequest(msgspec.Struct, frozen=True, rename="camel"):
    """What is requested of devices of one class, in a request or as one of its alternatives; ``count`` of them."""

    device_class_name: str = ""
    count: int = 1
    admin_access: bool | None = None
    capacity: _Capacity | None = None
    allocation_mode: str | None = None
    selectors: list[Any] | None = None

    @property
    def wanted(self) -> Consumed | None:
        """The memory (0: all of a GPU) and compute that is requested of each GPU; ``None`` if it is no share."""
        requests = (self.capacity.requests if self.capacity is not None else None) or {}
        if self.admin_access:
            return None
        try:
            # Rounded up, as kube-scheduler does.
            mib = -(-parse_amount(requests.get(MEMORY, "0"), MEMORY) // _MIB)
            return Consumed(mib, parse_amount(requests.get(COMPUTE, "0"), COMPUTE))
        except InvalidQuantity:
            return None

    @property
    def amount(self) -> str:
        """The amount for people: ``3Gi and 30% compute of a GPU``."""
        requests = (self.capacity.requests if self.capacity is not None else None) or {}
        memory, compute = requests.get(MEMORY, ""), requests.get(COMPUTE, "0")
        of = "a GPU" if self.count == 1 else f"each of {self.count} GPUs"
        if self.admin_access:
            return f"monitoring of {of.removeprefix('each of ')}"
        return (
            f"{memory or 'the default memory'}{'' if compute == '0' else f' and {compute}% compute'} of {of}"
        )


class _Request(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    exactly: DeviceRequest | None = None
    first_available: list[DeviceRequest] | None = None

    @property
    def alternatives(self) -> Collection[DeviceRequest]:
        return (self.exactly,) if self.exactly is not None else self.first_available or ()


class _Constraint(msgspec.Struct, frozen=True, rename="camel"):
    """The devices of a claim must have the same value of an attribute, or all different ones."""

    match_attribute: str | None = None
    distinct_attribute: str | None = None


class _Requests(msgspec.Struct, frozen=True):
    requests: list[_Request] | None = None
    constraints: list[_Constraint] | None = None


class _Spec(msgspec.Struct, frozen=True):
    devices: _Requests = msgspec.field(default_factory=_Requests)


class _Metadata(msgspec.Struct, frozen=True):
    uid: str = ""
    namespace: str = ""
    name: str = ""


class ResourceClaim(msgspec.Struct, frozen=True):
    """The fields of a ResourceClaim that gpushare reads."""

    metadata: _Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status | None = None

    @property
    def is_allocated(self) -> bool:
        """Whether kube-scheduler has allocated devices to it."""
        return self.status is not None and self.status.allocation is not None

    def device_requests(self, classes: Collection[str]) -> list[Collection[DeviceRequest]]:
        """The alternatives of each request for devices of these DeviceClasses."""
        requests = (request.alternatives for request in self.spec.devices.requests or ())
        return [
            alternatives
            for alternatives in requests
            if any(alternative.device_class_name in classes for alternative in alternatives)
        ]

    def requests_of(self, classes: Collection[str]) -> list[str]:
        """What it requests of devices of these DeviceClasses, for people; alternatives in one text."""
        return [
            " or ".join(alternative.amount for alternative in alternatives)
            for alternatives in self.device_requests(classes)
        ]

    def nodes(self) -> Collection[str]:
        """The nodes (pools) of which it is allocated GPUs of ours; one at most, as a pod is on one."""
        return {result.pool for result in self.devices.results or () if result.driver == names.DRA_DRIVER}

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def devices(self) -> AllocatedDevices:
        """The allocated devices; empty before the allocation."""
        allocation = self.status.allocation if self.status is not None else None
        return allocation.devices if allocation is not None else AllocatedDevices()

    @property
    def pods(self) -> tuple[str, ...]:
        """Names of the pods that may use it, in its namespace."""
        consumers = (self.status.reserved_for if self.status is not None else None) or ()
        return tuple(consumer.name for consumer in consumers if consumer.resource == "pods")

    def results_in(self, pool: str) -> list[AllocationResult]:
        """The allocated devices of ours in ``pool``, which is the node's name."""
        results = self.devices.results or ()
        return [result for result in results if result.driver == names.DRA_DRIVER and result.pool == pool]


class ClaimHolding(NamedTuple):
    """What a claim holds of a node's GPUs, in order of index; ``problems`` are about devices that are not counted, for people."""

    shares: tuple[GpuShare, ...]
    problems: tuple[str, ...] = ()


def claim_share(device: Device, mib: int, core_percent: int) -> GpuShare:
    """A claim's share of ``device``. Its unit is the MiB: claims have no units."""
    return GpuShare(device.uuid, device.index, mib, mib, device.total_mib, core_percent)


def holding_of(claim: ResourceClaim, node: str, devices: Iterable[Device]) -> ClaimHolding:
    """What ``claim`` holds of the ``devices`` of ``node``, as kube-scheduler counts it; monitoring (``adminAccess``) holds nothing."""
    by_name = {device.offered_as: device for device in devices}
    consumed: dict[str, Consumed] = {}
    problems: list[str] = []
    for result in claim.results_in(node):
        try:
            mib, core_percent = result.consumed()
        except InvalidQuantity as error:
            problems.append(f"ResourceClaim {claim.key}: {error}; it is not counted")
            continue
        if result.device not in by_name:
            problems.append(
                f"ResourceClaim {claim.key} holds {mib} MiB of GPU {result.device}, which node {node} no longer has"
            )
        elif not result.admin_access:
            before = consumed.get(result.device, Consumed(0, 0))
            consumed[result.device] = Consumed(before.mib + mib, before.core_percent + core_percent)
    shares = [claim_share(by_name[name], *amounts) for name, amounts in consumed.items()]
    return ClaimHolding(tuple(sorted(shares, key=lambda share: share.index)), tuple(problems))


#: The entry of a claim that kube-scheduler made; a pod's own entries are DNS labels.
_EXTENDED: Final = "<extended-resources>"


class PodClaims(NamedTuple):
    """The ResourceClaims of a pod, by the name of its entry; empty: not made yet. ``containers``: entries that each container uses.

    The claim that kube-scheduler made for the pod's extended resources is among them.
    """

    names: Mapping[str, str]
    containers: Mapping[str, tuple[str, ...]]


def claims_of(pod: Pod) -> PodClaims:
    """The claims of ``pod``, of any driver."""
    made = {entry.name: entry.resource_claim_name for entry in pod.status.resource_claim_statuses or ()}
    entries = {
        entry.name: entry.resource_claim_name or made.get(entry.name) or ""
        for entry in pod.spec.resource_claims or ()
    }
    uses = {
        container.name: tuple(use.name for use in container.resources.claims)
        for container in (*pod.spec.containers, *(pod.spec.init_containers or ()))
        if container.resources is not None and container.resources.claims
    }
    extended = pod.status.extended_resource_claim_status
    if extended is not None:
        entries[_EXTENDED] = extended.resource_claim_name
        for name in dict.fromkeys(one.container_name for one in extended.request_mappings or ()):
            uses[name] = (*uses.get(name, ()), _EXTENDED)
    return PodClaims(entries, uses)


def shares_requested(pod: Pod) -> int:
    """How many shares of the default size the pod's containers request by extended resource."""
    amounts = (
        (container.resources.limits or {}).get(names.GPU_SHARE, "0")
        for container in (*pod.spec.containers, *(pod.spec.init_containers or ()))
        if container.resources is not None
    )
    try:
        return sum(parse_amount(amount, names.GPU_SHARE) for amount in amounts)
    except InvalidQuantity:
        return 0


class _Selector(msgspec.Struct, frozen=True):
    cel: dict[str, str] | None = None


class _ClassSpec(msgspec.Struct, frozen=True):
    selectors: list[_Selector] | None = None


class DeviceClass(msgspec.Struct, frozen=True):
    """A DeviceClass (``resource.k8s.io/v1``)."""

    metadata: _Metadata
    spec: _ClassSpec = msgspec.field(default_factory=_ClassSpec)

    @property
    def is_ours(self) -> bool:
        """Whether it selects GPUs of ours: by its name, or by an expression that names our driver."""
        expressions = (selector.cel or {} for selector in self.spec.selectors or ())
        return self.metadata.name == names.DRA_DRIVER or any(
            f'"{names.DRA_DRIVER}"' in cel.get("expression", "").replace("'", '"') for cel in expressions
        )


class _Claims(msgspec.Struct):
    items: tuple[ResourceClaim, ...] = ()


_CLAIM: Final = msgspec.json.Decoder(ResourceClaim)
_CLAIMS: Final = msgspec.json.Decoder(_Claims)


def decode_resource_claim(raw: bytes) -> ResourceClaim:
    """The claim in ``raw``, JSON; raises ``msgspec.DecodeError``."""
    return _CLAIM.decode(raw)


def decode_resource_claims(raw: bytes | bytearray) -> Collection[ResourceClaim]:
    """The claims of a list in ``raw``, JSON; raises ``msgspec.DecodeError``."""
    return _CLAIMS.decode(raw).items
