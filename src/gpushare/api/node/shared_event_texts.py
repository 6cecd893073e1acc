"""Words for faults of which whoever sees them first tells: the node's agent, or the scheduler where none runs. Pure."""

from typing import Final

from gpushare.api import names

REASON_UNKNOWN_MODE: Final = "UnknownGPUMode"
REASON_STOPPED: Final = "AgentStopped"
REASON_UNHEALTHY: Final = "GPUUnhealthy"
REASON_NO_DRIVER: Final = "DriverNotFound"
REASON_DRIVER_FAILED: Final = "DriverFailed"
REASON_NO_GPU: Final = "NoGPU"
REASON_MALFORMED_ALLOCATION: Final = "MalformedGPUAllocation"

_OF_MODE: Final = f"label {names.LABEL_MODE}="


def is_of_mode(problem: str) -> bool:
    """Whether it is the label of the mode that cannot be understood; ``problem`` is ``MalformedDevices.problem``."""
    return problem.startswith(_OF_MODE)


def unknown_mode_note(problem: str) -> str:
    """What is told of it."""
    return f"{problem}; until then the node shares no GPU"
