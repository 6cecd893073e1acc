"""Failures of the driver as a whole, and what to do about them. Pure."""

from typing import Final

import pynvml

from gpushare.nodeagent.errors import DriverMissing, NodeAgentError, NvmlFailed

_NOT_LOADED: Final = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
_OTHER_VERSION: Final = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
#: Return values for any GPU that mean a fault of the driver.
_OF_DRIVER: Final = frozenset({_NOT_LOADED, _OTHER_VERSION, pynvml.NVML_ERROR_UNINITIALIZED})


def is_drivers(code: int) -> bool:
    """Whether NVML's return value ``code`` for one GPU means a fault of the driver, and so of all."""
    return code in _OF_DRIVER


def suggestion_of(error: NodeAgentError) -> str:
    """What to do about ``error``: ``DriverMissing``, or the ``NvmlFailed`` of a driver that does not work."""
    if isinstance(error, DriverMissing):
        return "Install the NVIDIA driver on the node, or set nodeAgent.driverRoot to the directory under which libnvidia-ml.so.1 is installed"
    code = error.code if isinstance(error, NvmlFailed) else 0
    # The library exists: installing a driver would not help.
    if code == _NOT_LOADED:
        return (
            "The driver library is installed, but the kernel module is not loaded. Run `nvidia-smi` as root on the node "
            "to load it; if that fails, check dmesg"
        )
    if code == _OTHER_VERSION:
        return (
            "The driver library and the kernel module have different versions, as after an upgrade: reboot the node, "
            "or stop all programs that use the GPUs and reload the module"
        )
    return (
        "The driver is installed but does not work; see the node agent's log and dmesg for its error message"
    )
