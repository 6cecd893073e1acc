"""What is taken for more than a container was given: by the watchdog, and by whoever shows it. Pure."""

from typing import Final

#: What a process may hold above what it asked for: the driver rounds up, and a context may grow by itself.
SLACK_MIB: Final = 32
#: Utilisation is sampled, and so is rough.
SLACK_PERCENT: Final = 10


def is_over_memory(used_mib: float, given_mib: int) -> bool:
    """Whether more of a GPU's memory is used than was given, by more than is due to how it is counted."""
    return used_mib > given_mib + SLACK_MIB


def is_over_compute(used_percent: float, given_percent: int) -> bool:
    """Whether more of a GPU's time is used than was given, by more than is due to how it is measured; 0 is no limit."""
    return given_percent > 0 and used_percent > given_percent + SLACK_PERCENT
