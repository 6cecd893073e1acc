"""What a ResourceClaim (``resource.k8s.io/v1``) was allocated of our devices, as its status says. Pure.

Unknown fields are skipped, and claims of other drivers have no results here.
"""

from collections.abc import Collection
from typing import Final, NamedTuple

import msgspec

from gpushare.api import names
from gpushare.api.quantity import parse_amount

#: What claims consume of a GPU.
MEMORY: Final = "memory"
COMPUTE: Final = "compute"
SHARES: Final = "shares"

_MIB: Final = 1 << 20


def device_name(uuid: str) -> str:
    """The name of a GPU in slices and allocations."""
    return uuid.lower()


class Consumed(NamedTuple):
    """What an allocation consumes of a GPU; 0 percent: its compute is not limited."""

    mib: int
    core_percent: int


class AllocationResult(msgspec.Struct, frozen=True, rename="camel"):
    """A device that a request was allocated."""

    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool | None = None
    share_id: str | None = msgspec.field(default=None, name="shareID")
    consumed_capacity: dict[str, str] | None = None

    def consumed(self) -> Consumed:
        """Raises ``InvalidQuantity``."""
        capacity = self.consumed_capacity or {}
        mib = parse_amount(capacity.get(MEMORY, "0"), MEMORY) // _MIB
        return Consumed(mib, parse_amount(capacity.get(COMPUTE, "0"), COMPUTE))


class OpaqueParameters(msgspec.Struct, frozen=True):
    """Parameters for one driver, as JSON."""

    driver: str = ""
    parameters: msgspec.Raw = msgspec.Raw(b"{}")


class Configuration(msgspec.Struct, frozen=True):
    """``requests``: to which it applies; all of them where there are none."""

    requests: list[str] | None = None
    opaque: OpaqueParameters | None = None


class AllocatedDevices(msgspec.Struct, frozen=True):
    """The results, and the parameters of classes and claim."""

    results: list[AllocationResult] | None = None
    config: list[Configuration] | None = None


class _Allocation(msgspec.Struct, frozen=True):
    devices: AllocatedDevices = msgspec.field(default_factory=AllocatedDevices)


class Consumer(msgspec.Struct, frozen=True):
    """An object that may use the claim, as a rule a pod."""

    resource: str = ""
    name: str = ""


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    allocation: _Allocation | None = None
    reserved_for: list[Consumer] | None = None


class _Metadata(msgspec.Struct, frozen=True):
    uid: str = ""
    namespace: str = ""
    name: str = ""


class ResourceClaim(msgspec.Struct, frozen=True):
    """A claim, as far as it is about our devices."""

    metadata: _Metadata
    status: _Status | None = None

    @property
    def devices(self) -> AllocatedDevices:
        """What it was allocated; nothing where it is not allocated yet."""
        allocation = self.status.allocation if self.status is not None else None
        return allocation.devices if allocation is not None else AllocatedDevices()

    @property
    def pods(self) -> tuple[str, ...]:
        """The names of pods that may use it, which are in its namespace."""
        consumers = (self.status.reserved_for if self.status is not None else None) or ()
        return tuple(one.name for one in consumers if one.resource == "pods")

    def results_in(self, pool: str) -> list[AllocationResult]:
        """Our devices of the node ``pool`` that it was allocated."""
        results = self.devices.results or ()
        return [one for one in results if one.driver == names.DRA_DRIVER and one.pool == pool]


class _Claims(msgspec.Struct):
    items: Collection[ResourceClaim] = ()


_CLAIM: Final = msgspec.json.Decoder(ResourceClaim)
_CLAIMS: Final = msgspec.json.Decoder(_Claims)


def decode_resource_claim(raw: bytes) -> ResourceClaim:
    """The claim in ``raw``, JSON; raises ``msgspec.DecodeError``."""
    return _CLAIM.decode(raw)


def decode_resource_claims(raw: bytes | bytearray) -> Collection[ResourceClaim]:
    """The claims of a list in ``raw``, JSON; raises ``msgspec.DecodeError``."""
    return _CLAIMS.decode(raw).items
