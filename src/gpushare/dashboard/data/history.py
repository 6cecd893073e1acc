"""History of the cluster since this process started: a bounded list of samples, coarser the longer it runs."""

from typing import Final

import msgspec

MOST_SAMPLES: Final = 1440


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """The cluster's totals at one moment. ``used_mib`` is -1 if no node reports usage.

    ``reporting_gpus`` and ``reporting_mib``: number and memory of the GPUs that ``used_mib`` covers. ``core_gpus``: GPUs whose compute is
    allocated, which ``allocated_core`` covers. ``at_s``: seconds since 1970. ``fragments_mib``: free memory that the mix of arriving
    requests cannot use.
    """

    at_s: int
    gpus: int
    total_mib: int
    allocated_mib: int
    used_mib: int
    allocated_core: int
    pods: int
    waiting: int
    free_mib: int
    fragments_mib: int
    reporting_gpus: int = 0
    reporting_mib: int = 0
    core_gpus: int = 0


class History:
    """Samples every ``step_s`` seconds; at the limit, every other sample is dropped and the step doubles."""

    def __init__(self, step_s: float = 5.0, most: int = MOST_SAMPLES) -> None:
        self.step_s = step_s
        self._most = most
        self._samples: list[Sample] = []
        self._due_s = float("-inf")

    def due(self, now_s: float) -> bool:
        """Whether a sample is due at the monotonic time ``now_s``."""
        return now_s >= self._due_s

    def add(self, sample: Sample, now_s: float) -> None:
        """Append a sample taken at the monotonic time ``now_s``."""
        self._samples.append(sample)
        if len(self._samples) > self._most:
            # The newest sample stays: it must match the current figures on the page.
            self._samples = self._samples[::-2][::-1]
            self.step_s *= 2
        self._due_s = now_s + self.step_s

    def samples(self) -> list[Sample]:
        """All samples, the oldest first."""
        return list(self._samples)
