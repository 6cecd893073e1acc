"""What was allocated to a ResourceClaim on this node, and as what shares of GPUs. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from gpushare.api import names
from gpushare.api.allocation.allocation import GpuShare
from gpushare.api.errors import InvalidQuantity
from gpushare.api.node.device import Device
from gpushare.api.quantity import parse_amount
from gpushare.nodeagent.dra.slices import COMPUTE, MEMORY, device_name
from gpushare.nodeagent.errors import AllocationRefused

_MIB: Final = 1 << 20


class ClaimReference(NamedTuple):
    """A ResourceClaim, as the kubelet names it."""

    namespace: str
    name: str
    uid: str

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"


class AllocatedDevice(NamedTuple):
    """A device that a request of a claim was allocated: what it consumes of it, in MiB and percent (0: not limited)."""

    request: str
    pool: str
    device: str
    share_id: str
    mib: int
    core_percent: int


class _Result(msgspec.Struct, rename="camel"):
    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool | None = None
    share_id: str | None = msgspec.field(default=None, name="shareID")
    consumed_capacity: dict[str, str] | None = None


class _Parameters(msgspec.Struct):
    driver: str = ""


class _Configuration(msgspec.Struct):
    opaque: _Parameters | None = None


class _Devices(msgspec.Struct):
    results: list[_Result] | None = None
    config: list[_Configuration] | None = None


class _Allocation(msgspec.Struct):
    devices: _Devices = msgspec.field(default_factory=_Devices)


class _Status(msgspec.Struct):
    allocation: _Allocation | None = None


class _Metadata(msgspec.Struct):
    uid: str = ""


class _Claim(msgspec.Struct):
    metadata: _Metadata
    status: _Status | None = None


_CLAIM: Final = msgspec.json.Decoder(_Claim)


def claim_uid(raw: bytes) -> str:
    """The UID of the claim in ``raw``, JSON; raises ``msgspec.DecodeError``."""
    return _CLAIM.decode(raw).metadata.uid


def allocated_devices(raw: bytes, claim: ClaimReference, pool: str) -> list[AllocatedDevice]:
    """What the claim in ``raw`` (JSON) was allocated of our devices in ``pool``; raises ``AllocationRefused``."""
    try:
        found = _CLAIM.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _refused(claim, f"the API server's answer is no claim ({error})") from None
    if found.metadata.uid != claim.uid:
        raise _refused(
            claim, f"it has UID {found.metadata.uid}, not {claim.uid}: the claim was replaced meanwhile"
        )
    allocation = found.status.allocation if found.status is not None else None
    devices = allocation.devices if allocation is not None else _Devices()
    ours = [one for one in devices.results or () if one.driver == names.DRA_DRIVER and one.pool == pool]
    if not ours:
        raise _refused(claim, f"it is allocated no GPU of node {pool}")
    if any(one.opaque is not None and one.opaque.driver == names.DRA_DRIVER for one in devices.config or ()):
        raise _refused(
            claim, f"it has parameters for driver {names.DRA_DRIVER}, which takes none yet; remove its config"
        )
    return [_allocated(claim, one) for one in ours]


def shares_of(
    claim: ClaimReference, allocated: Iterable[AllocatedDevice], gpus: Sequence[Device]
) -> tuple[GpuShare, ...]:
    """Its share of each of its GPUs; raises ``AllocationRefused`` for one that this node does not have.

    What several requests were allocated of one GPU is one share of it, without a limit of compute if one of them has none.
    """
    by_name: Mapping[str, Device] = {device_name(gpu.uuid): gpu for gpu in gpus}
    found: dict[str, GpuShare] = {}
    for one in allocated:
        gpu = by_name.get(one.device)
        if gpu is None:
            raise _refused(claim, f"node {one.pool} has no GPU {one.device} now")
        before = found.get(gpu.uuid)
        mib, core_percent = one.mib, one.core_percent
        if before is not None:
            mib += before.mib
            core_percent = core_percent + before.core_percent if core_percent and before.core_percent else 0
        # In MiB and not in units: claims know no units, and programs want the ratio of both.
        found[gpu.uuid] = GpuShare(gpu.uuid, gpu.index, mib, mib, gpu.total_mib, core_percent)
    return tuple(found.values())


def _allocated(claim: ClaimReference, result: _Result) -> AllocatedDevice:
    if result.admin_access:
        raise _refused(claim, f"request {result.request} wants adminAccess, which is not offered yet")
    consumed: dict[str, Any] = result.consumed_capacity or {}
    try:
        mib = parse_amount(consumed.get(MEMORY, "0"), MEMORY) // _MIB
        core_percent = parse_amount(consumed.get(COMPUTE, "0"), COMPUTE)
    except InvalidQuantity as error:
        raise _refused(claim, str(error)) from None
    if mib < 1 or core_percent > 100:
        raise _refused(
            claim,
            f"request {result.request} consumes {mib} MiB and {core_percent}% of {result.device}, which is no share: "
            "it needs 1 MiB at least, which API servers record from Kubernetes 1.36 on",
        )
    # A request with alternatives is told as request/alternative; containers name the request.
    request = result.request.partition("/")[0]
    return AllocatedDevice(request, result.pool, result.device, result.share_id or "", mib, core_percent)


def _refused(claim: ClaimReference, problem: str) -> AllocationRefused:
    return AllocationRefused(f"ResourceClaim {claim.key}", problem)
