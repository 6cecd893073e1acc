"""Writing and reading the annotations of an allocation: ACK's two generations, compute, and our own.

Other readers know the first two generations. The ledger reads our own annotation, which has MiB and UUIDs and so does not depend on a
unit. Records of other schedulers are accepted if complete and consistent, and rejected with a reason otherwise, because a guess could
allocate memory twice.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from gpushare.api import names
from gpushare.api.allocation.allocation import Allocation, GpuShare
from gpushare.api.errors import MalformedAllocation
from gpushare.api.node.device import NodeDevices
from gpushare.api.quantity import MemoryUnit, granted_mib
from gpushare.api.request.pluralize import counted
from gpushare.api.request.request import ContainerKind, Request

_VERSION: Final = 1
_MAX_TIME_NS: Final = 2**63 - 1


class _Record(msgspec.Struct, frozen=True):
    """The value of ``gpushare.dev/allocation``."""

    version: int
    unit: str
    gpus: tuple[GpuShare, ...]
    containers: dict[str, tuple[GpuShare, ...]]


class Stamp(msgspec.Struct, frozen=True):
    """When a pod was allocated its share (unix ns, 0 if unknown), and whether its containers have it."""

    assume_time_ns: int
    assigned: bool


_RECORD = msgspec.json.Decoder(_Record)
_BY_CONTAINER = msgspec.json.Decoder(dict[str, dict[str, int]])


def allocation_annotations(allocation: Allocation, request: Request, stamp: Stamp) -> dict[str, str]:
    """All annotations of a bound pod, for one atomic write.

    The first generation is written only for pods on one GPU, as it cannot express more; the second for app containers, by index in
    ``spec.containers``, with every GPU; the core annotation if compute was requested.
    """
    assigned = "true" if stamp.assigned else "false"
    written = {names.ANN_SHARE: _record(allocation)}
    if request.by_gpu:
        return written  # earlier generations are about shares: their readers add up memory
    if len(allocation.gpus) == 1:
        share = allocation.gpus[0]
        written |= {
            names.ANN_MEM_INDEX: str(share.index),
            names.ANN_MEM_POD: str(share.units),
            names.ANN_MEM_DEVICE: str(share.device_units),
            names.ANN_MEM_ASSIGNED: assigned,
            names.ANN_MEM_ASSUME_TIME: str(stamp.assume_time_ns),
        }
    apps = [
        (str(container.index), allocation.containers[container.name])
        for container in request.containers
        if container.kind is ContainerKind.APP
    ]
    if apps:
        units = {index: {str(share.index): share.units for share in shares} for index, shares in apps}
        written |= {
            names.ANN_ALLOCATION: msgspec.json.encode(units).decode(),
            names.ANN_ASSIGNED: assigned,
            names.ANN_ASSUME_TIME: str(stamp.assume_time_ns),
        }
    if request.wants_core and apps:
        core = {index: {str(share.index): share.core_percent for share in shares} for index, shares in apps}
        written[names.ANN_CORE] = msgspec.json.encode(core).decode()
    return written


def is_allocated(annotations: Mapping[str, str]) -> bool:
    """Whether the pod has allocation annotations of any generation, readable or not."""
    return any(name in annotations for name in (names.ANN_SHARE, names.ANN_ALLOCATION, names.ANN_MEM_INDEX))


def read_stamp(annotations: Mapping[str, str], subject: str = "") -> Stamp:
    """When the pod was allocated its share and whether its containers have it, from either generation.

    Raises ``MalformedAllocation`` if a value is malformed.
    """
    assigned = {
        _assigned(annotations[name], name, subject)
        for name in (names.ANN_MEM_ASSIGNED, names.ANN_ASSIGNED)
        if name in annotations
    }
    times = {
        _number(annotations[name], name, subject, _MAX_TIME_NS)
        for name in (names.ANN_MEM_ASSUME_TIME, names.ANN_ASSUME_TIME)
        if name in annotations
    }
    # Old agents may mark the generations one after the other, so assigned in either counts.
    return Stamp(min(times, default=0), True in assigned)


def read_allocation(
    annotations: Mapping[str, str], node: NodeDevices | None, subject: str = ""
) -> Allocation | None:
    """The allocation in the annotations, or ``None`` if there is none.

    ``node`` is needed only without our own annotation: the older generations have GPU indices, and memory in the unit of that time.
    Raises ``MalformedAllocation``, naming ``subject``.
    """
    text = annotations.get(names.ANN_SHARE)
    if text is not None:
        return _read_record(text, subject)
    if not is_allocated(annotations):
        return None
    if node is None:
        raise MalformedAllocation(
            subject, "allocation annotations of another scheduler, on a node that is not known"
        )
    first = _read_first(annotations, subject)
    second = _read_second(annotations, names.ANN_ALLOCATION, subject)
    core = _read_second(annotations, names.ANN_CORE, subject) or {}
    if first is None and second is None:
        raise MalformedAllocation(subject, f"{names.ANN_ALLOCATION} names no container")
    containers = second or {}
    if first is not None:
        index, pod_units, device_units = first
        _check_generations(index, pod_units, containers, subject)
        held = {index: pod_units}
    else:
        device_units = None
        held = _per_gpu(containers)
    held_core = _per_gpu(core)
    if not held_core.keys() <= held.keys():
        raise MalformedAllocation(
            subject, f"{names.ANN_CORE} names a GPU that {names.ANN_ALLOCATION} does not"
        )

    def share(index: int, units: int, core_percent: int) -> GpuShare:
        return _foreign_share(node, index, units, device_units, core_percent, subject)

    return Allocation(
        gpus=tuple(share(index, units, held_core.get(index, 0)) for index, units in sorted(held.items())),
        containers={
            f"#{container}": tuple(
                share(index, units, core.get(container, {}).get(index, 0))
                for index, units in sorted(by_gpu.items())
            )
            for container, by_gpu in sorted(containers.items())
        },
    )


def _record(allocation: Allocation) -> str:
    unit = allocation.unit.setting if allocation.unit else ""
    return msgspec.json.encode(_Record(_VERSION, unit, allocation.gpus, allocation.containers)).decode()


def _read_record(text: str, subject: str) -> Allocation:
    try:
        record = _RECORD.decode(text)
        unit = MemoryUnit.parse(record.unit) if record.unit else None
    except (ValueError, RecursionError) as error:
        raise MalformedAllocation(subject, f"annotation {names.ANN_SHARE} cannot be read: {error}") from None
    if record.version != _VERSION:
        raise MalformedAllocation(
            subject,
            f"annotation {names.ANN_SHARE} has version {record.version}, this program reads {_VERSION}",
        )
    shares = [*record.gpus, *(share for shares in record.containers.values() for share in shares)]
    if not record.gpus or not all(map(_in_range, shares)):
        raise MalformedAllocation(
            subject, f"annotation {names.ANN_SHARE} names no GPU or an amount out of range"
        )
    if len({share.uuid for share in record.gpus}) < len(record.gpus):
        raise MalformedAllocation(subject, f"annotation {names.ANN_SHARE} names a GPU twice")
    return Allocation(record.gpus, record.containers, unit)


def _in_range(share: GpuShare) -> bool:
    return (
        bool(share.uuid)
        and share.index >= 0
        and 0 <= share.mib < 1 << 30
        and 0 < share.units <= share.device_units < 1 << 30
        and 0 <= share.core_percent <= 100
    )


def _read_first(annotations: Mapping[str, str], subject: str) -> tuple[int, int, int | None] | None:
    """(GPU index, units of the pod, units of that GPU) of the first generation."""
    if names.ANN_MEM_INDEX not in annotations:
        return None
    if names.ANN_MEM_POD not in annotations:
        raise MalformedAllocation(subject, f"{names.ANN_MEM_INDEX} without {names.ANN_MEM_POD}")
    index = _number(annotations[names.ANN_MEM_INDEX], names.ANN_MEM_INDEX, subject, 1 << 16)
    units = _number(annotations[names.ANN_MEM_POD], names.ANN_MEM_POD, subject, 1 << 30)
    device = annotations.get(names.ANN_MEM_DEVICE)
    return index, units, None if device is None else _number(device, names.ANN_MEM_DEVICE, subject, 1 << 30)


def _read_second(annotations: Mapping[str, str], name: str, subject: str) -> dict[int, dict[int, int]] | None:
    """Container index → GPU index → amount."""
    text = annotations.get(name)
    if text is None:
        return None
    try:
        raw = _BY_CONTAINER.decode(text)
        read = {
            _key(container): {_key(gpu): amount for gpu, amount in by_gpu.items()}
            for container, by_gpu in raw.items()
        }
    except (ValueError, RecursionError) as error:
        raise MalformedAllocation(
            subject, f'annotation {name} is not JSON of the form {{"container":{{"gpu":units}}}}: {error}'
        ) from None
    if not all(0 <= amount < 1 << 30 for by_gpu in read.values() for amount in by_gpu.values()):
        raise MalformedAllocation(subject, f"annotation {name} has a number out of range")
    return {container: by_gpu for container, by_gpu in read.items() if by_gpu} or None


def _key(text: str) -> int:
    """An index from a JSON key; other spellings of a number could name an index twice."""
    if not (text.isascii() and text.isdecimal()) or len(text) > 5 or str(int(text)) != text:
        raise ValueError(f"{text[:40]!r} is no index")
    return int(text)


def _per_gpu(containers: Mapping[int, Mapping[int, int]]) -> dict[int, int]:
    summed: dict[int, int] = {}
    for by_gpu in containers.values():
        for gpu, amount in by_gpu.items():
            summed[gpu] = summed.get(gpu, 0) + amount
    return summed


def _check_generations(
    index: int, pod_units: int, containers: Mapping[int, Mapping[int, int]], subject: str
) -> None:
    summed = _per_gpu(containers)
    # The pod's units may exceed the sum of its containers: an init container may have requested more.
    if summed and (set(summed) != {index} or summed[index] > pod_units):
        raise MalformedAllocation(
            subject,
            f"{names.ANN_MEM_INDEX}={index} with {counted(pod_units, 'unit')} and {names.ANN_ALLOCATION} contradict each other",
        )


def _foreign_share(
    node: NodeDevices, index: int, units: int, device_units: int | None, core_percent: int, subject: str
) -> GpuShare:
    device = node.device_at(index)
    if device is None:
        raise MalformedAllocation(subject, f"names GPU {index}, which node {node.name} does not have")
    of_units = node.units_of(device) if device_units is None else device_units
    share = GpuShare(
        device.uuid,
        index,
        granted_mib(device.total_mib, units, of_units) if of_units else -1,
        units,
        of_units,
        core_percent,
    )
    if not _in_range(share):
        raise MalformedAllocation(
            subject,
            f"holds {counted(units, 'unit')} of GPU {index}, which has {of_units}, and {core_percent}% compute: not possible",
        )
    return share


def _number(text: str, name: str, subject: str, most: int) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 20 or int(text) > most:
        raise MalformedAllocation(
            subject, f"annotation {name}={text[:40]!r} is not a number from 0 to {most}"
        )
    return int(text)


def _assigned(text: str, name: str, subject: str) -> bool:
    if text not in ("true", "false"):
        raise MalformedAllocation(subject, f"annotation {name}={text[:40]!r} is neither true nor false")
    return text == "true"
