"""Tolerances for overuse of memory and compute, for the watchdog and the tools. Pure."""

from typing import Final

#: How far a container at its limit may exceed it: implicit allocations of the driver are counted, but cannot be refused. Code of four libraries
#: whose kernels ran later took 10 MiB on an H200, four streams take a page of 2, and an odd limit is a MiB off.
SLACK_MIB: Final = 16
#: Utilization is sampled, and therefore imprecise.
SLACK_PERCENT: Final = 10


def is_over_memory(used_mib: float, given_mib: int) -> bool:
    """Whether GPU memory use exceeds the share by more than the tolerance."""
    return used_mib > given_mib + SLACK_MIB


def is_over_compute(used_percent: float, given_percent: int) -> bool:
    """Whether GPU time exceeds the share by more than the tolerance; 0 is no limit."""
    return given_percent > 0 and used_percent > given_percent + SLACK_PERCENT
