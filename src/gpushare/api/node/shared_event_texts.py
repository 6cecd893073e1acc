"""Event texts shared by the node agent and the scheduler, which reports a fault where no agent runs. No I/O."""

from typing import Final

from gpushare.api import names

REASON_UNKNOWN_MODE: Final = "UnknownGPUMode"
REASON_STOPPED: Final = "AgentStopped"
REASON_UNHEALTHY: Final = "GPUUnhealthy"
REASON_NO_DRIVER: Final = "DriverNotFound"
REASON_DRIVER_FAILED: Final = "DriverFailed"
REASON_NO_GPU: Final = "NoGPU"
REASON_RELEASED: Final = "DriverReleased"
#: Of the condition ``GPUShareReady`` of a node none of whose GPUs works, through no fault of a single GPU.
NO_WORKING_GPU: Final = (REASON_NO_DRIVER, REASON_DRIVER_FAILED, REASON_NO_GPU, REASON_RELEASED)
REASON_MALFORMED_ALLOCATION: Final = "MalformedGPUAllocation"

_OF_MODE: Final = f"label {names.LABEL_MODE}="


def is_of_mode(problem: str) -> bool:
    """Whether ``problem``, that of a ``MalformedDevices``, is about the mode's label."""
    return problem.startswith(_OF_MODE)


def unknown_mode_note(problem: str) -> str:
    """The note of the event about an unknown mode."""
    return f"{problem}; until then the node shares no GPU"
