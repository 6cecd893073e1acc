"""MIG instances of a GPU from NVML."""

import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pynvml

logger = logging.getLogger(__name__)

_MIB: Final = 1 << 20
#: Device nodes in /dev/nvidia-caps are numbered from 3: of each GPU those of fifteen GPU instances, each with eight for its compute
#: instances (/proc/driver/nvidia-caps/mig-minors).
_FIRST_CAPABILITY: Final = 3
_PER_INSTANCE: Final = 9
_INSTANCES: Final = 15


class MigInstance(NamedTuple):
    """A GPU instance with its only compute instance. ``start``: the memory slice at which it begins."""

    uuid: str
    name: str
    total_mib: int
    start: int
    handle: Any
    capabilities: tuple[int, ...]
    """Numbers of the device nodes ``/dev/nvidia-caps/nvidia-capN`` that give access to it; empty if the GPU's own number is unknown."""


class _Found(NamedTuple):
    """A MIG device, with the ids of its GPU instance and compute instance."""

    handle: Any
    gpu_instance: int
    compute_instance: int


def instances_of(gpu: Any, minor: int) -> list[MigInstance]:
    """The instances of the GPU with handle ``gpu``, which is in MIG mode; ``minor`` is that of ``/dev/nvidiaN``, -1 if unknown.

    A GPU instance with several compute instances is left out: they share its memory, so none has memory of its own. Raises
    ``pynvml.NVMLError``.
    """
    found = list(_devices(gpu))
    divided = {one for one, count in Counter(device.gpu_instance for device in found).items() if count > 1}
    if divided:
        named = ", ".join(map(str, sorted(divided)))
        logger.warning(
            "MIG instances with several compute instances, which share memory, are left out: %s", named
        )
    return [_read(gpu, minor, device) for device in found if device.gpu_instance not in divided]


def instance_uuids(gpu: Any) -> list[str]:
    """The MIG devices of the GPU with handle ``gpu``, which is in MIG mode. Raises ``pynvml.NVMLError``."""
    return [_str(pynvml.nvmlDeviceGetUUID(device.handle)) for device in _devices(gpu)]


def _devices(gpu: Any) -> Iterator[_Found]:
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
        except pynvml.NVMLError_NotFound:
            continue
        yield _Found(
            handle,
            int(pynvml.nvmlDeviceGetGpuInstanceId(handle)),
            int(pynvml.nvmlDeviceGetComputeInstanceId(handle)),
        )


def _read(gpu: Any, minor: int, device: _Found) -> MigInstance:
    instance = pynvml.nvmlDeviceGetGpuInstanceById(gpu, device.gpu_instance)
    own = _FIRST_CAPABILITY + (_INSTANCES * minor + device.gpu_instance) * _PER_INSTANCE
    return MigInstance(
        _str(pynvml.nvmlDeviceGetUUID(device.handle)),
        _str(pynvml.nvmlDeviceGetName(device.handle)),
        int(pynvml.nvmlDeviceGetMemoryInfo(device.handle).total) // _MIB,
        int(pynvml.nvmlGpuInstanceGetInfo(instance).placement.start),
        device.handle,
        (own, own + 1 + device.compute_instance) if minor >= 0 else (),
    )


def _str(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
