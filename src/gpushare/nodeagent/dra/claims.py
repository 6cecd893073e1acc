"""What was allocated to a ResourceClaim on this node, and the resulting shares of GPUs. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from gpushare.api import names
from gpushare.api.allocation.allocation import GpuShare
from gpushare.api.allocation.resource_claim import (
    AllocationResult,
    Configuration,
    claim_share,
    decode_resource_claim,
)
from gpushare.api.errors import InvalidQuantity
from gpushare.api.node.device import Device
from gpushare.nodeagent.errors import AllocationRefused
from gpushare.nodeagent.isolation.options import CorePolicy


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
    """A device that was allocated to a request of a claim, with what it consumes: MiB and percent (0: not limited).

    With ``admin_access`` it consumes nothing, and its containers are not limited: they monitor the GPU.
    """

    request: str
    pool: str
    device: str
    share_id: str
    mib: int
    core_percent: int
    admin_access: bool = False


class ShareConfig(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Parameters of a claim, or of a DeviceClass, for our driver. Empty values: those of the node apply."""

    api_version: Literal["gpushare.dev/v1"]
    kind: Literal["ShareConfig"]
    compute_policy: Literal["", "hard", "work-conserving"] = ""
    """Whether the claim's containers are limited to their percentage, or may also use what others leave idle."""
    compute_class: Literal["", "latency", "batch"] = ""
    """As the pod label ``gpushare.dev/compute-class``."""

    @property
    def core_policy(self) -> CorePolicy | None:
        """The policy as written in limits files; ``None``: that of the node."""
        policies: Mapping[str, CorePolicy] = {"hard": "hard", "work-conserving": "idle"}
        return policies.get(self.compute_policy)


NO_CONFIG: Final = ShareConfig("gpushare.dev/v1", "ShareConfig")


def claim_uid(raw: bytes) -> str:
    """The UID of the claim in ``raw`` (JSON); raises ``msgspec.DecodeError``."""
    return decode_resource_claim(raw).metadata.uid


class Allocated(NamedTuple):
    """What a claim was allocated on this node, and how."""

    devices: list[AllocatedDevice]
    config: ShareConfig


def allocated_devices(raw: bytes, claim: ClaimReference, pool: str) -> Allocated:
    """What the claim in ``raw`` (JSON) was allocated of our devices in ``pool``; raises ``AllocationRefused``."""
    try:
        decoded = decode_resource_claim(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _refused(claim, f"the API server's answer is no claim ({error})") from None
    if decoded.metadata.uid != claim.uid:
        raise _refused(
            claim, f"it has UID {decoded.metadata.uid}, not {claim.uid}: the claim was replaced meanwhile"
        )
    ours = decoded.results_in(pool)
    if not ours:
        raise _refused(claim, f"it is allocated no GPU of node {pool}")
    allocated = [_allocated(claim, result) for result in ours]
    if len({device.admin_access for device in allocated}) > 1:
        raise _refused(
            claim, "some of its requests have adminAccess and some are for shares; use a claim for each"
        )
    return Allocated(
        allocated, _config(claim, decoded.devices.config or (), {device.request for device in allocated})
    )


def shares_of(
    claim: ClaimReference, allocated: Iterable[AllocatedDevice], gpus: Sequence[Device]
) -> tuple[GpuShare, ...]:
    """The claim's share of each of its GPUs; raises ``AllocationRefused`` for a GPU that this node does not have.

    If several requests were allocated the same GPU their shares are added up; compute is not limited if one of them has no limit.
    """
    by_name: Mapping[str, Device] = {gpu.offered_as: gpu for gpu in gpus}
    shares: dict[str, GpuShare] = {}
    for device in allocated:
        gpu = by_name.get(device.device)
        if gpu is None:
            raise _refused(claim, f"node {device.pool} has no GPU {device.device} now")
        before = shares.get(gpu.uuid)
        mib, core_percent = device.mib, device.core_percent
        if before is not None:
            mib += before.mib
            core_percent = core_percent + before.core_percent if core_percent and before.core_percent else 0
        shares[gpu.uuid] = claim_share(gpu, mib, core_percent)
    return tuple(shares.values())


def _allocated(claim: ClaimReference, result: AllocationResult) -> AllocatedDevice:
    # A request with alternatives is reported as request/alternative; containers name the request.
    request = result.request.partition("/")[0]
    if result.admin_access:
        return AllocatedDevice(request, result.pool, result.device, result.share_id or "", 0, 0, True)
    try:
        mib, core_percent = result.consumed()
    except InvalidQuantity as error:
        raise _refused(claim, str(error)) from None
    if mib < 1 or core_percent > 100:
        raise _refused(
            claim,
            f"request {result.request} consumes {mib} MiB and {core_percent}% of {result.device}, which is not a valid share: "
            "at least 1 MiB is required, which API servers record from Kubernetes 1.36 on",
        )
    return AllocatedDevice(request, result.pool, result.device, result.share_id or "", mib, core_percent)


def _config(
    claim: ClaimReference, configurations: Iterable[Configuration], requests: Collection[str]
) -> ShareConfig:
    """The parameters of a claim, which come after those of its classes and override them."""
    merged = NO_CONFIG
    for one in configurations:
        if one.opaque is None or one.opaque.driver != names.DRA_DRIVER:
            continue
        if one.requests and not {name.partition("/")[0] for name in one.requests} >= set(requests):
            raise _refused(
                claim,
                f"its parameters for driver {names.DRA_DRIVER} apply only to some of its requests; name all requests or none, because a claim has a single limit",
            )
        try:
            config = msgspec.convert(one.opaque.parameters or {}, ShareConfig)
        except msgspec.MsgspecError as error:
            raise _refused(claim, f"its parameters for driver {names.DRA_DRIVER}: {error}") from None
        merged = msgspec.structs.replace(
            merged,
            compute_policy=config.compute_policy or merged.compute_policy,
            compute_class=config.compute_class or merged.compute_class,
        )
    return merged


def _refused(claim: ClaimReference, problem: str) -> AllocationRefused:
    return AllocationRefused(f"ResourceClaim {claim.key}", problem)
