"""A node's GPUs as ResourceSlices (``resource.k8s.io/v1``). Pure.

Each GPU is one device that may be allocated to many claims, which consume its capacity. It is named after its UUID, so that an
allocation still names the same GPU after a reboot, whatever its index is then. A GPU that takes no new claims stays in the slice
with a taint: what claims hold of it must remain accounted for. All slices of a node have one generation. There is more than one only
where it has more than 64 devices, or MIG instances on demand (``partitions``): API servers take no slice with both counters and devices.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import msgspec

from gpushare.api import names
from gpushare.api.allocation.allocation import GpuShare
from gpushare.api.allocation.resource_claim import COMPUTE, MEMORY, SHARES
from gpushare.api.errors import InvalidQuantity
from gpushare.api.node.device import Device
from gpushare.api.quantity import parse_quantity
from gpushare.nodeagent.driver.nvml import Hardware
from gpushare.nodeagent.settings import DefaultShare

Json = dict[str, Any]

#: Compute is requested in steps of this many percent, as with extended resources.
COMPUTE_STEP: Final = 5

#: The API server refuses a range of capacities whose minimum plus one step is more than the capacity.
_LEAST_MIB: Final = 2

#: Taints of devices: of a GPU that an administrator cordoned, and of one that is unhealthy, with the reason as value.
CORDONED: Final = "gpushare.dev/cordoned"
UNHEALTHY: Final = "gpushare.dev/unhealthy"

WHOLE: Final = DefaultShare()
#: What API servers take in one slice: devices, if any of them consumes counters or has a taint, as any may at any time; and counter sets.
_MOST_DEVICES: Final = 64
_MOST_COUNTER_SETS: Final = 8

_PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"
_MOST_CHARACTERS: Final = 64
_MOST_OF_A_LABEL: Final = 63
_NUMBERS: Final = re.compile(r"\d+")
_NOT_IN_LABELS: Final = re.compile(r"[^A-Za-z0-9_.]+")


class Owner(msgspec.Struct, frozen=True):
    """The node, which owns its slice: they are deleted together."""

    name: str
    uid: str


class Published(msgspec.Struct, frozen=True):
    """A slice as stored at the API server."""

    name: str
    uid: str
    version: str
    """Its resource version."""
    generation: int
    node_uid: str
    devices: tuple[Json, ...]
    counters: tuple[Json, ...] = ()
    of: int = 1
    """How many slices its node has in this generation."""

    @property
    def is_shared(self) -> bool:
        """Whether the API server kept the field that allows several allocations: it drops fields of disabled features."""
        return all(device.get("allowMultipleAllocations") for device in self.devices)

    def keeps(self, part: "Part") -> bool:
        """Whether the API server kept the counters of ``part``, and what its devices consume of them."""
        consumed = [bool(device.get("consumesCounters")) for device in self.devices]
        return len(self.counters) == len(part.counters) and consumed == [
            bool(device.get("consumesCounters")) for device in part.devices
        ]


class Part(NamedTuple):
    """What one of a node's slices has: devices, or the counters of which they consume."""

    name: str
    devices: tuple[Json, ...] = ()
    counters: tuple[Json, ...] = ()


def slice_name(node: str) -> str:
    """The name of a node's first slice of GPUs."""
    return f"{node}-{names.DRA_DRIVER}"


def parts_of(node: str, devices: Sequence[Json], counters: Sequence[Json]) -> list[Part]:
    """The slices of ``node``, those with counters first. kube-scheduler tries devices in the order of the slices' names."""
    name = slice_name(node)
    consuming = [device for device in devices if device.get("consumesCounters")]
    others = [device for device in devices if not device.get("consumesCounters")]
    return [
        *(
            Part(f"{name}-counters-{number}", counters=group)
            for number, group in enumerate(_groups(counters, _MOST_COUNTER_SETS))
        ),
        *(
            Part(f"{name}-{number}" if number else name, group)
            for number, group in enumerate(_groups(others, _MOST_DEVICES))
        ),
        *([] if devices else [Part(name)]),
        *(
            Part(f"{name}-mig-{number}", group)
            for number, group in enumerate(_groups(consuming, _MOST_DEVICES))
        ),
    ]


def _groups(items: Sequence[Json], most: int) -> Iterator[tuple[Json, ...]]:
    for start in range(0, len(items), most):
        yield tuple(items[start : start + most])


class Remainder(NamedTuple):
    """What claims can get of a GPU: MiB, percent of compute, and how many of them."""

    mib: int
    core_percent: int
    shares: int

    @property
    def is_offered(self) -> bool:
        """Whether the API server takes it as a device: its memory has one step at least."""
        return self.mib >= _LEAST_MIB and self.shares > 0


def remainder_of(gpu: Device, held: Sequence[GpuShare], most_shares: int) -> Remainder:
    """What is left of ``gpu`` beside what pods hold from before the node's mode changed, and what unmanaged processes use."""
    core_percent = max(100 - sum(share.core_percent for share in held), 0)
    return Remainder(
        gpu.total_mib - gpu.foreign_mib - sum(share.mib for share in held),
        core_percent // COMPUTE_STEP * COMPUTE_STEP,
        most_shares - len(held),
    )


def devices_of(
    gpus: Iterable[Device],
    hardware: Mapping[str, Hardware],
    most_shares: int,
    dead: Collection[str] = (),
    held: Mapping[str, Sequence[GpuShare]] | None = None,
    default: DefaultShare = WHOLE,
) -> tuple[Json, ...]:
    """The devices of a node's GPUs, except those of which nothing is left, and those that pods hold whole.

    ``most_shares``: how many claims can be isolated on one GPU. ``dead`` (UUIDs): pods with claims on these are evicted. ``held``: by
    UUID, shares of pods from before the node's mode changed. ``default``: what a claim gets that requests no amount; not offered are GPUs
    without the compute that it has.
    """
    devices = []
    for gpu in gpus:
        shares = (held or {}).get(gpu.uuid, ())
        remainder = remainder_of(gpu, shares, most_shares)
        # Claims for a whole GPU get none of which pods still hold a part.
        amount = default if default.mib or not shares else replace(default, mib=gpu.total_mib)
        if (
            remainder.is_offered
            and not gpu.kept_back
            and (remainder.core_percent or not default.core_percent)
        ):
            device_hardware = hardware.get(gpu.uuid, Hardware())
            devices.append(device_of(gpu, device_hardware, remainder, dead=gpu.uuid in dead, default=amount))
    return tuple(devices)


def untainted(devices: Iterable[Json]) -> tuple[Json, ...]:
    """The devices without taints."""
    return tuple(device for device in devices if not device.get("taints"))


def slices_of(
    owner: Owner, parts: Sequence[Part], before: Mapping[str, Published]
) -> list[tuple[Part, Json]]:
    """The parts to write, with their slices. ``before``: all of the node's slices, by name.

    A change of one of several keeps the generation, because it is one write, as in Kubernetes' own controller for slices; otherwise
    all are written with the next one.
    """
    parts = [
        part._replace(devices=tuple(_dated(device, before.get(part.name)) for device in part.devices))
        for part in parts
    ]
    there = [before[part.name] for part in parts if part.name in before]
    changed = [part for part in parts if not _is_published(owner, part, before.get(part.name), len(parts))]
    is_complete = len(there) == len(parts) and len({one.generation for one in there}) == 1
    if is_complete and not changed:
        return []
    generation = max((one.generation for one in before.values()), default=0)
    if not (is_complete and len(changed) == 1 < len(parts) == len(before)):
        changed, generation = parts, generation + 1
    return [(part, _slice(owner, part, before.get(part.name), generation, len(parts))) for part in changed]


def _is_published(owner: Owner, part: Part, before: Published | None, of: int) -> bool:
    return (
        before is not None
        and before.node_uid == owner.uid
        and before.of == of
        and _same(before.devices, part.devices)
        and _same(before.counters, part.counters)
    )


def _slice(owner: Owner, part: Part, before: Published | None, generation: int, of: int) -> Json:
    metadata: Json = {
        "name": part.name,
        "ownerReferences": [
            {"apiVersion": "v1", "kind": "Node", "name": owner.name, "uid": owner.uid, "controller": True}
        ],
    }
    if before is not None:
        metadata |= {"uid": before.uid, "resourceVersion": before.version}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": metadata,
        "spec": {
            "driver": names.DRA_DRIVER,
            "nodeName": owner.name,
            "pool": {"name": owner.name, "generation": generation, "resourceSliceCount": of},
            **({"sharedCounters": list(part.counters)} if part.counters else {"devices": list(part.devices)}),
        },
    }


def device_of(
    gpu: Device, hardware: Hardware, remainder: Remainder, *, dead: bool, default: DefaultShare = WHOLE
) -> Json:
    """A device from which claims get ``remainder``, by default ``default``; ``dead``: pods with claims on it are evicted."""
    attributes: Json = {
        "uuid": _text(gpu.uuid),
        "productName": _text(gpu.model),
        "architecture": _text(hardware.architecture),
        "cudaComputeCapability": _version(hardware.cuda_compute_capability),
        "driverVersion": _version(hardware.driver_version),
        "numaNode": {"int": gpu.numa_node} if gpu.numa_node >= 0 else None,
        _PCIE_ROOT: _text(hardware.pcie_root),
        "parentUUID": _text(hardware.parent_uuid),
        "profile": _text(hardware.profile),
    }
    taints = _taints(gpu, dead=dead)
    return {
        "name": gpu.offered_as,
        "allowMultipleAllocations": True,
        "attributes": {name: value for name, value in attributes.items() if value is not None},
        "capacity": {
            # A claim without an amount gets the whole GPU, as with other drivers, unless the administrator has chosen a default.
            MEMORY: _capacity(remainder.mib, default.mib or remainder.mib, "Mi", least=1, step=1),
            # 0 is no limit. A range must have room for one step.
            COMPUTE: _capacity(remainder.core_percent, default.core_percent, "", least=0, step=COMPUTE_STEP)
            if remainder.core_percent
            else {"value": "0", "requestPolicy": {"default": "0", "validValues": ["0"]}},
            # Not requested: each allocation consumes one, so that no pod is bound that the node must refuse.
            SHARES: {"value": str(remainder.shares), "requestPolicy": {"default": "1", "validValues": ["1"]}},
        },
        **({"taints": taints} if taints else {}),
    }


def _taints(gpu: Device, *, dead: bool) -> list[Json]:
    taints: list[Json] = []
    if gpu.cordoned:
        taints.append({"key": CORDONED, "effect": "NoSchedule"})
    if not gpu.healthy:
        reason = _NOT_IN_LABELS.sub("-", gpu.reason)[:_MOST_OF_A_LABEL].strip("-_.")
        taints.append({"key": UNHEALTHY, "value": reason, "effect": "NoExecute" if dead else "NoSchedule"})
    return taints


def _dated(device: Json, before: Published | None) -> Json:
    """The device, with the API server's timestamps for taints that it already had."""
    old = (
        next((one for one in before.devices if one["name"] == device["name"]), {})
        if before is not None
        else {}
    )
    times = {(taint["key"], taint["effect"]): taint.get("timeAdded") for taint in old.get("taints") or ()}
    if not times or "taints" not in device:
        return device
    taints = [
        taint | ({"timeAdded": time} if (time := times.get((taint["key"], taint["effect"]))) else {})
        for taint in device["taints"]
    ]
    return device | {"taints": taints}


def _capacity(value: int, default: int, unit: str, *, least: int, step: int) -> Json:
    valid = {"min": f"{least}{unit}", "max": f"{value}{unit}", "step": f"{step}{unit}"}
    if default > value:
        # The default must be in the range. Without the maximum it is, and is still more than there is.
        del valid["max"]
    return {
        "value": f"{value}{unit}",
        "requestPolicy": {"default": f"{default}{unit}", "validRange": valid},
    }


def _text(value: str) -> Json | None:
    return {"string": value[:_MOST_CHARACTERS]} if value else None


def _version(value: str) -> Json | None:
    """As a semantic version, which has three numbers without leading zeros: 580.65.06 is 580.65.6."""
    numbers = [str(int(one)) for one in _NUMBERS.findall(value)]
    return {"version": ".".join([*numbers, "0", "0"][:3])} if numbers else None


def _same(before: tuple[Json, ...], devices: tuple[Json, ...]) -> bool:
    """Compares semantically, because the API server normalizes quantities: 15360Mi becomes 15Gi."""
    return [_plain(device) for device in before] == [_plain(device) for device in devices]


def _plain(value: Any, *, amounts: bool = False) -> Any:
    if isinstance(value, dict):
        return {
            key: _plain(one, amounts=amounts or key in ("capacity", "counters")) for key, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [_plain(one, amounts=amounts) for one in value]
    if amounts and isinstance(value, str):
        try:
            return parse_quantity(value)
        except InvalidQuantity:
            return value
    return value


class _Metadata(msgspec.Struct, rename="camel"):
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    owner_references: list[Json] | None = None


class _Pool(msgspec.Struct, rename="camel"):
    generation: int = 0
    resource_slice_count: int = 1


class _Spec(msgspec.Struct, rename="camel"):
    pool: _Pool
    devices: list[Json] | None = None
    shared_counters: list[Json] | None = None


class _Slice(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec


_SLICE: Final = msgspec.json.Decoder(_Slice)


def read_slice(raw: bytes) -> Published:
    """The slice in ``raw`` (JSON); raises ``msgspec.DecodeError``."""
    decoded = _SLICE.decode(raw)
    metadata = decoded.metadata
    owner = next((str(reference.get("uid", "")) for reference in metadata.owner_references or ()), "")
    return Published(
        metadata.name,
        metadata.uid,
        metadata.resource_version,
        decoded.spec.pool.generation,
        owner,
        tuple(decoded.spec.devices or ()),
        tuple(decoded.spec.shared_counters or ()),
        decoded.spec.pool.resource_slice_count,
    )
