"""Device IDs that identify their GPU.

An ID is the beginning of the GPU's UUID and a number: ``5a1f8c1e-24`` a unit of memory, ``5a1f8c1e-c7`` one percent of compute,
``5a1f8c1e-g`` the whole GPU. So the kubelet's checkpoint and pod resources say which GPU a container has, whatever its current
index in NVML.

The number of a unit of memory is its position on the GPU in steps of 128 MiB: with 1 GiB units the IDs are 0, 8, 16, … . When the
memory unit changes, the IDs of running containers still block their position, and nothing more. (From 1 GiB to 128 MiB an ID
blocks an eighth of what it stands for. The kubelet cannot know more; the scheduler's ledger counts MiB.)
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from gpushare.api.node.device import Device
from gpushare.api.quantity import MemoryUnit
from gpushare.nodeagent.errors import UnknownDeviceId

#: Kubernetes takes IDs of up to 63 characters.
MAX_ID_LENGTH: Final = 63
#: What ``gpu-core.percentage`` counts per GPU.
CORE_PER_GPU: Final = 100

_PREFIX_LENGTH: Final = 8
_LONGEST_PREFIX: Final = 48
_STEP_MIB: Final = MemoryUnit.MIB_128.mib
_CORE_MARK: Final = "c"
_WHOLE_MARK: Final = "g"


class DeviceIds:
    """Maps a node's GPUs to IDs and back. Immutable; recreated when the GPUs change."""

    def __init__(self, devices: Sequence[Device]) -> None:
        bodies = {device.uuid: _body(device.uuid) for device in devices}
        self._bodies = bodies
        self._prefixes = {uuid: _shortest(body, bodies.values()) for uuid, body in bodies.items()}
        self._uuids = {prefix: uuid for uuid, prefix in self._prefixes.items()}

    def memory_ids(self, device: Device, unit: MemoryUnit) -> list[str]:
        """An ID for each unit of memory of ``device``, lowest position first."""
        prefix, step = self._prefixes[device.uuid], unit.mib // _STEP_MIB
        return [f"{prefix}-{place * step}" for place in range(unit.count_in(device.total_mib))]

    def core_ids(self, device: Device) -> list[str]:
        """An ID for each percent of compute of ``device``."""
        prefix = self._prefixes[device.uuid]
        return [f"{prefix}-{_CORE_MARK}{percent}" for percent in range(CORE_PER_GPU)]

    def whole_id(self, device: Device) -> str:
        """The ID of ``device`` as a whole."""
        return f"{self._prefixes[device.uuid]}-{_WHOLE_MARK}"

    def gpu_of(self, device_id: str) -> str:
        """The UUID of the GPU of an ID; raises ``UnknownDeviceId``.

        IDs from a time when other GPUs required a longer or shorter prefix are still understood.
        """
        prefix = device_id.rpartition("-")[0]
        uuid = self._uuids.get(prefix)
        if uuid is not None:
            return uuid
        found = (
            [uuid for uuid, body in self._bodies.items() if body.startswith(prefix)]
            if len(prefix) >= _PREFIX_LENGTH
            else []
        )
        if len(found) != 1:
            raise UnknownDeviceId(f"device {device_id[:MAX_ID_LENGTH]}", "lies on no GPU of this node")
        return found[0]

    def by_gpu(self, device_ids: Iterable[str]) -> dict[str, list[str]]:
        """The IDs on each GPU, by UUID, in no order; those of unknown GPUs are skipped."""
        by_prefix: dict[str, list[str]] = {}
        for device_id in device_ids:
            by_prefix.setdefault(device_id[: device_id.rfind("-")], []).append(device_id)
        found: dict[str, list[str]] = {}
        for its in by_prefix.values():
            try:
                found.setdefault(self.gpu_of(its[0]), []).extend(its)
            except UnknownDeviceId:
                continue
        return found

    def gpus_of(self, device_ids: Iterable[str]) -> dict[str, int]:
        """How many of the IDs are on each GPU, by UUID; raises ``UnknownDeviceId``."""
        counted: dict[str, int] = {}
        for device_id in device_ids:
            uuid = self.gpu_of(device_id)
            counted[uuid] = counted.get(uuid, 0) + 1
        return counted

    def balanced(
        self, gpus: Iterable[str], free: Mapping[str, Sequence[str]], must: Sequence[str], amount: int
    ) -> list[str]:
        """``amount`` of the IDs ``free`` on ``gpus`` (by UUID), as evenly as possible: ``must``, then the lowest.

        Fewer if there are no more.
        """
        held = self.by_gpu(must)
        counts = {uuid: len(held.get(uuid, ())) for uuid in sorted(gpus)}
        rest = {uuid: iter(in_order(set(free.get(uuid, ())).difference(must))) for uuid in counts}
        chosen = list(must[:amount])
        while counts and len(chosen) < amount:
            uuid = min(counts, key=counts.__getitem__)
            one = next(rest[uuid], None)
            if one is None:
                del counts[uuid]
            else:
                chosen.append(one)
                counts[uuid] += 1
        return chosen


def in_order(device_ids: Iterable[str]) -> list[str]:
    """The IDs by GPU, and by number within it."""
    return sorted(device_ids, key=_place)


def _place(device_id: str) -> tuple[str, int]:
    prefix, _, number = device_id.rpartition("-")
    digits = number.removeprefix(_CORE_MARK)
    return prefix, int(digits) if digits.isdecimal() else -1


def _body(uuid: str) -> str:
    """The distinguishing part of a UUID, in characters that IDs may have."""
    body = "".join(
        sign
        for sign in uuid.removeprefix("GPU-").removeprefix("MIG-").lower()
        if sign.isascii() and sign.isalnum()
    )
    return body[:_LONGEST_PREFIX]


def _shortest(body: str, bodies: Iterable[str]) -> str:
    others = [other for other in bodies if other != body]
    length = _PREFIX_LENGTH
    while length < len(body) and any(other.startswith(body[:length]) for other in others):
        length += 1
    return body[:length]
