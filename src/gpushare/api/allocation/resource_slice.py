"""GPUs that nodes offer to ResourceClaims, read from ResourceSlices (``resource.k8s.io/v1``), and what of them is free. No I/O."""

from collections.abc import Collection, Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from gpushare.api import names
from gpushare.api.allocation.resource_claim import COMPUTE, MEMORY, SHARES, ResourceClaim
from gpushare.api.errors import InvalidQuantity
from gpushare.api.quantity import parse_amount

_MIB: Final = 1 << 20


class _Policy(msgspec.Struct, frozen=True):
    default: str = "0"


class _Amount(msgspec.Struct, frozen=True, rename="camel"):
    value: str = "0"
    request_policy: _Policy | None = None


class DeviceTaint(msgspec.Struct, frozen=True):
    """A taint of a device: it takes no claims that do not tolerate it."""

    key: str
    value: str = ""
    effect: str = ""


class _Counters(msgspec.Struct, frozen=True, rename="camel"):
    """What MIG instances can take of a GPU in all, or one of them takes: a counter set, by amounts."""

    name: str = ""
    counter_set: str = ""
    counters: dict[str, _Amount] = msgspec.field(default_factory=dict)


class _Device(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    allow_multiple_allocations: bool | None = None
    capacity: dict[str, _Amount] | None = None
    taints: list[DeviceTaint] | None = None
    consumes_counters: list[_Counters] | None = None


class _Pool(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 1


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    driver: str = ""
    node_name: str | None = None
    pool: _Pool = msgspec.field(default_factory=_Pool)
    devices: list[_Device] | None = None
    shared_counters: list[_Counters] | None = None


class ResourceSlice(msgspec.Struct, frozen=True):
    """The fields of a ResourceSlice that gpushare reads."""

    spec: _Spec

    @property
    def is_ours(self) -> bool:
        """Whether its devices are GPUs of ours."""
        return self.spec.driver == names.DRA_DRIVER

    @property
    def node(self) -> str:
        """The name of its node, which is that of its pool."""
        return self.spec.node_name or ""

    @property
    def generation(self) -> int:
        """That of its node's slices: older ones do not count."""
        return self.spec.pool.generation

    @property
    def of(self) -> int:
        """How many slices its node has in this generation; kube-scheduler allocates of none until all are there."""
        return self.spec.pool.resource_slice_count

    @property
    def devices(self) -> Collection[_Device]:
        """Its GPUs."""
        return self.spec.devices or ()


class _Slices(msgspec.Struct):
    items: tuple[ResourceSlice, ...] = ()


class OfferedGpu(NamedTuple):
    """A GPU that ``node`` offers to claims: what it has and what is free of it; ``taint``: the first that it has, ``key=value``."""

    node: str
    device: str
    total_mib: int
    free_mib: int
    total_core_percent: int
    free_core_percent: int
    free_shares: int
    taint: str = ""
    default_mib: int = 0
    """What a claim consumes that requests no amount of memory."""


def decode_resource_slices(raw: bytes | bytearray) -> Collection[ResourceSlice]:
    """The slices of a list in ``raw``, JSON; raises ``msgspec.DecodeError``."""
    return _SLICES.decode(raw).items


def current_slices(slices: Iterable[ResourceSlice]) -> dict[str, list[ResourceSlice]]:
    """Our slices of each node, by its name, of the newest generation."""
    by_node: dict[str, list[ResourceSlice]] = {}
    for one in slices:
        if one.is_ours:
            by_node.setdefault(one.node, []).append(one)
    return {
        node: [one for one in its if one.generation == max(other.generation for other in its)]
        for node, its in by_node.items()
    }


def offered_gpus(slices: Iterable[ResourceSlice], claims: Iterable[ResourceClaim]) -> list[OfferedGpu]:
    """The GPUs of ours in ``slices``, less what ``claims`` consume, as kube-scheduler counts; those with most free memory first.

    Without MIG instances that cannot be created because others are there.
    """
    ours = [one for of_node in current_slices(slices).values() for one in of_node]
    consumed: dict[tuple[str, str], tuple[int, int, int]] = {}
    for claim in claims:
        for node in claim.nodes():
            for result in claim.results_in(node):
                if not result.admin_access:
                    mib, core_percent, shares = consumed.get((node, result.device), (0, 0, 0))
                    more = _consumed(result.consumed_capacity or {})
                    consumed[node, result.device] = (mib + more[0], core_percent + more[1], shares + more[2])
    left = _counters_left(ours, consumed)
    offered = [
        _offered(one.node, device, consumed.get((one.node, device.name), (0, 0, 0)))
        for one in ours
        for device in one.devices
        if (one.node, device.name) in consumed
        or all(
            left.get((one.node, counter), 0) >= amount
            for counter, amount in _counters(device.consumes_counters)
        )
    ]
    return sorted(offered, key=lambda gpu: (bool(gpu.taint), -gpu.free_mib, gpu.node, gpu.device))


def _counters(sets: "Iterable[_Counters] | None") -> "Iterator[tuple[tuple[str, str], int]]":
    """Amounts by counter set and counter."""
    for one in sets or ():
        for name, amount in one.counters.items():
            yield (one.name or one.counter_set, name), _amount({name: amount.value}, name)


def _counters_left(
    slices: "Iterable[ResourceSlice]", consumed: "Collection[tuple[str, str]]"
) -> "dict[tuple[str, tuple[str, str]], int]":
    """What devices that claims hold leave of each node's counters."""
    slices = tuple(slices)
    left = {
        (one.node, counter): amount
        for one in slices
        for counter, amount in _counters(one.spec.shared_counters)
    }
    for one in slices:
        for device in one.devices:
            if (one.node, device.name) in consumed:
                for counter, amount in _counters(device.consumes_counters):
                    left[one.node, counter] = left.get((one.node, counter), 0) - amount
    return left


def _offered(node: str, device: _Device, consumed: "tuple[int, int, int]") -> OfferedGpu:
    capacity = {name: amount.value for name, amount in (device.capacity or {}).items()}
    mib, core_percent, shares = _consumed(capacity)
    policy = (device.capacity or {}).get(MEMORY, _Amount()).request_policy
    taint = next(iter(device.taints or ()), None)
    return OfferedGpu(
        node,
        device.name,
        mib,
        max(mib - consumed[0], 0),
        core_percent,
        max(core_percent - consumed[1], 0),
        max(shares - consumed[2], 0),
        "" if taint is None else f"{taint.key}={taint.value}" if taint.value else taint.key,
        _consumed({MEMORY: policy.default})[0] if policy is not None else mib,
    )


def _consumed(amounts: "dict[str, str]") -> "tuple[int, int, int]":
    """MiB, percent of compute, and shares; 0 for what is no quantity."""
    return _amount(amounts, MEMORY) // _MIB, _amount(amounts, COMPUTE), _amount(amounts, SHARES)


def _amount(amounts: "dict[str, str]", name: str) -> int:
    try:
        return parse_amount(amounts.get(name, "0"), name)
    except InvalidQuantity:
        return 0


_SLICES: Final = msgspec.json.Decoder(_Slices)
