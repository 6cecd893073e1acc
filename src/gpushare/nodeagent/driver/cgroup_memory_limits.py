"""The driver's limits of GPU memory by cgroup, as NVML has them from r615 on (``nvmlDevice{Get,Set}MemoryLimits_v1``)."""

from typing import Any, Final

import pynvml

#: The hard limit of a cgroup that has none (``NVML_DEVICE_MEMORY_LIMIT_MAX``).
NO_LIMIT: Final = (1 << 64) - 1

#: Return values for a broken GPU.
GPU_IS_BROKEN: Final = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED})

#: Return values that say nothing about support of limits.
_TELLS_NOTHING: Final = GPU_IS_BROKEN | {
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    pynvml.NVML_ERROR_UNKNOWN,
}

_OLDER: Final = "this driver has no limits by cgroup; they come with r615 (CUDA 13.4)"


def why_not(handle: Any, cgroup: str) -> str | None:
    """Why the driver cannot limit cgroups on this GPU; empty if it can, ``None`` while that is unknown.

    ``cgroup`` is the root of the hierarchy: other errors than these concern only that one.
    """
    try:
        limit_bytes(handle, cgroup)
    except pynvml.NVMLError_FunctionNotFound:
        return _OLDER
    except pynvml.NVMLError_NotSupported:
        return "the driver says that this GPU does not support limits by cgroup"
    except pynvml.NVMLError as error:
        return None if error.value in _TELLS_NOTHING else ""
    return ""


def limit_bytes(handle: Any, cgroup: str) -> int:
    """The hard limit of the cgroup with that directory; raises ``pynvml.NVMLError``."""
    limits = pynvml.c_nvmlGetMemoryLimits_v1_t()
    limits.nameSpace = cgroup.encode()
    try:
        pynvml.nvmlDeviceGetMemoryLimits_v1(handle, limits)
    except pynvml.NVMLError_NotFound:
        return NO_LIMIT
    return int(limits.hardLimit)


def set_limit(handle: Any, cgroup: str, hard_bytes: int) -> None:
    """Set its hard limit, and no soft one; raises ``pynvml.NVMLError``.

    Soft limits are added up in the cgroups above, and stay there when the cgroup goes.
    """
    limits = pynvml.c_nvmlSetMemoryLimits_v1_t()
    limits.nameSpace, limits.softLimit, limits.hardLimit = cgroup.encode(), 0, hard_bytes
    pynvml.nvmlDeviceSetMemoryLimits_v1(handle, limits)
