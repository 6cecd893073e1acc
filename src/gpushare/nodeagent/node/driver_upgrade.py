"""By which label of the node NVIDIA's GPU Operator asks programs to close the driver, as it does before it replaces it. Pure.

Source: k8s-driver-manager (``cmd/driver-manager/main.go``), whose ``evictAllGPUOperatorComponents`` sets the operands' labels before it
unloads the kernel modules and ``rescheduleGPUOperatorComponents`` sets them back; mig-manager does the same with another value. The
state ``pod-restart-required`` of the upgrade controller lasts from the end of the old driver's pod, which unloads the modules, too,
until the new one is ready.
"""

from collections.abc import Mapping
from typing import Final

_OPERAND: Final = "nvidia.com/gpu.deploy."
#: Part of the value, as in ``paused-for-driver-upgrade``, ``paused-for-mig-change``, ``other_paused-for-driver-upgrade``.
_PAUSED: Final = "paused-for-"
_STATE: Final = "nvidia.com/gpu-driver-upgrade-state"
_RESTART: Final = "pod-restart-required"


def closing_label(labels: Mapping[str, str]) -> str:
    """The label, as ``name=value``; empty if the driver may be open."""
    return next(
        (
            f"{name}={value}"
            for name, value in sorted(labels.items())
            if (name.startswith(_OPERAND) and _PAUSED in value) or (name == _STATE and value == _RESTART)
        ),
        "",
    )
