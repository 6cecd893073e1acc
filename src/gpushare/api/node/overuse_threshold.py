"""Tolerances for overuse of memory and compute, for the watchdog and the tools. No I/O."""

from typing import Final

#: Tolerated excess over the limit: implicit allocations of the driver are counted, but cannot be refused. On an H200, lazily loaded code of
#: four libraries took 10 MiB, four streams take a page of 2 MiB, and rounding of odd limits takes 1 MiB.
SLACK_MIB: Final = 16
#: Utilization is sampled, and therefore imprecise.
SLACK_PERCENT: Final = 10


def is_over_memory(used_mib: float, allocated_mib: int) -> bool:
    """Whether GPU memory use exceeds the share by more than the tolerance."""
    return used_mib > allocated_mib + SLACK_MIB


def is_over_compute(used_percent: float, allocated_percent: int) -> bool:
    """Whether GPU time exceeds the share by more than the tolerance; 0 is no limit."""
    return allocated_percent > 0 and used_percent > allocated_percent + SLACK_PERCENT
