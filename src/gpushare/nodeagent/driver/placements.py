"""MIG instances on demand, through NVML: where a GPU in MIG mode can have them; creating and destroying them.

A placement is a profile and the memory slice at which the instance begins. It identifies an instance that exists, so creating one
that exists does nothing, and neither does destroying one that does not.
"""

import ctypes
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pynvml

from gpushare.nodeagent.errors import NodeAgentError

#: More than NVML has for any profile.
_MOST: Final = 32
_SHARED_ENGINES: Final = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED


_NAME: Final = re.compile(r"gpu-([0-9a-f-]+)-mig-(\d+)-(\d+)")


class PlacementTaken(NodeAgentError):
    """Somebody else has created the instance that is to be created."""

    def __init__(self, subject: str) -> None:
        super().__init__(
            subject, "it was not created by gpushare; it is left unchanged and offered to other claims"
        )


class Placement(NamedTuple):
    """A possible MIG instance of the GPU with UUID ``gpu``: it occupies ``size`` memory slices from ``start``, and has ``mib`` of memory.

    ``consumes``: what else it takes of the GPU, by name; only a limited number of each exists.
    """

    gpu: str
    profile: str
    profile_id: int
    start: int
    size: int
    mib: int
    consumes: tuple[tuple[str, int], ...] = ()

    @property
    def name(self) -> str:
        """The name of its device in ResourceSlices."""
        return f"{self.gpu.lower()}-mig-{self.profile_id}-{self.start}"

    def overlaps(self, other: "Placement") -> bool:
        """Whether only one of both instances can exist."""
        same_gpu = self.gpu == other.gpu
        return same_gpu and self.start < other.start + other.size and other.start < self.start + self.size

    def __str__(self) -> str:
        """For messages."""
        return f"MIG instance {self.profile or f'of profile {self.profile_id}'} at memory slice {self.start} of GPU {self.gpu}"


def placement_named(name: str) -> Placement | None:
    """The placement of a device's ``name``, as far as it says: enough to find its instance; ``None``: it names none."""
    match = _NAME.fullmatch(name)
    return None if match is None else Placement(f"GPU-{match[1]}", "", int(match[2]), int(match[3]), 0, 0)


def placements_of(gpu: Any, uuid: str) -> tuple[Placement, ...]:
    """All placements of the GPU with handle ``gpu``, which is in MIG mode, occupied or not. Raises ``pynvml.NVMLError``."""
    return tuple(
        Placement(
            uuid,
            _str(profile.name).removeprefix("MIG "),
            int(profile.id),
            int(place.start),
            int(place.size),
            int(profile.memorySizeMB),
            tuple((name, amount) for name, amount in _consumed(profile) if amount),
        )
        for profile in _profiles(gpu)
        for place in _places(gpu, profile.id)
    )


def occupied_of(gpu: Any, placements: tuple[Placement, ...]) -> tuple[Placement, ...]:
    """Those of a GPU's ``placements`` that have an instance, whoever created it. Raises ``pynvml.NVMLError``."""
    instances = {
        (profile_id, start)
        for profile_id in {one.profile_id for one in placements}
        for start in _instances(gpu, profile_id)
    }
    return tuple(one for one in placements if (one.profile_id, one.start) in instances)


def create_instance(gpu: Any, placement: Placement, *, ours: bool) -> None:
    """Create the instance with one compute instance in it, as far as they do not exist.

    Raises ``PlacementTaken`` for an instance that exists already unless it is ``ours``, ``pynvml.NVMLError``.
    """
    instance = _instances(gpu, placement.profile_id).get(placement.start)
    if instance is not None and not ours:
        raise PlacementTaken(str(placement))
    if instance is None:
        place = pynvml.c_nvmlGpuInstancePlacement_t(placement.start, placement.size)
        instance = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(
            gpu, placement.profile_id, ctypes.byref(place)
        )
    whole = max(_compute_profiles(instance), key=lambda profile: int(profile.sliceCount))
    if not _compute_instances(instance, whole.id):
        pynvml.nvmlGpuInstanceCreateComputeInstance(instance, whole.id)


def destroy_instance(gpu: Any, placement: Placement) -> None:
    """Destroy the instance and its compute instances, if they exist. Raises ``pynvml.NVMLError``, as while a process uses it."""
    instance = _instances(gpu, placement.profile_id).get(placement.start)
    if instance is None:
        return
    for profile in _compute_profiles(instance):
        for compute in _compute_instances(instance, profile.id):
            pynvml.nvmlComputeInstanceDestroy(compute)
    pynvml.nvmlGpuInstanceDestroy(instance)


def _profiles(gpu: Any) -> Iterator[Any]:
    for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            yield pynvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, number)
        except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument):
            continue


def _places(gpu: Any, profile_id: int) -> list[Any]:
    count = ctypes.c_uint(_MOST)
    places = (pynvml.c_nvmlGpuInstancePlacement_t * _MOST)()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, profile_id, places, ctypes.byref(count))
    return list(places[: count.value])


def _consumed(profile: Any) -> Iterator[tuple[str, int]]:
    yield "compute-slices", int(profile.sliceCount)
    yield "decoders", int(profile.decoderCount)
    yield "encoders", int(profile.encoderCount)
    yield "jpeg-engines", int(profile.jpegCount)
    yield "ofa-engines", int(profile.ofaCount)


def _instances(gpu: Any, profile_id: int) -> dict[int, Any]:
    """The GPU instances of a profile, by the memory slice at which they begin."""
    count = ctypes.c_uint(0)
    instances = (pynvml.c_nvmlGpuInstance_t * _MOST)()
    pynvml.nvmlDeviceGetGpuInstances(gpu, profile_id, instances, ctypes.byref(count))
    found = instances[: count.value]
    return {int(pynvml.nvmlGpuInstanceGetInfo(one).placement.start): one for one in found}


def _compute_profiles(instance: Any) -> Iterator[Any]:
    for number in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            yield pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, number, _SHARED_ENGINES)
        except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument):
            continue


def _compute_instances(instance: Any, profile_id: int) -> list[Any]:
    count = ctypes.c_uint(0)
    instances = (pynvml.c_nvmlComputeInstance_t * _MOST)()
    pynvml.nvmlGpuInstanceGetComputeInstances(instance, profile_id, instances, ctypes.byref(count))
    return list(instances[: count.value])


def _str(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
