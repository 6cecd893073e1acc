"""What is taken for more than a container was given: by the watchdog, and by whoever shows it. Pure."""

from typing import Final

#: What a container at its limit may come to hold above it: containers count what the driver takes unasked, but cannot refuse it. Code of four libraries
#: whose kernels ran later took 10 MiB on an H200, four streams take a page of 2, and an odd limit is a MiB off.
SLACK_MIB: Final = 16
#: Utilisation is sampled, and so is rough.
SLACK_PERCENT: Final = 10


def is_over_memory(used_mib: float, given_mib: int) -> bool:
    """Whether more of a GPU's memory is used than was given, by more than is due to how it is counted."""
    return used_mib > given_mib + SLACK_MIB


def is_over_compute(used_percent: float, given_percent: int) -> bool:
    """Whether more of a GPU's time is used than was given, by more than is due to how it is measured; 0 is no limit."""
    return given_percent > 0 and used_percent > given_percent + SLACK_PERCENT
