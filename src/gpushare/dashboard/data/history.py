"""How the cluster fared since this process started: a bounded row of samples that gets coarser as it gets longer."""

from typing import Final

import msgspec

MOST_SAMPLES: Final = 1440


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One moment. Shares of the whole are left to the reader; ``used_mib`` is -1 where no node tells.

    ``reporting_gpus`` and ``reporting_mib`` are the GPUs of which ``used_mib`` is told, and their memory; ``core_gpus`` are those of which
    compute is given, which ``allocated_core`` is a part of. ``at_s`` is in seconds since 1970, ``fragments_mib`` what is free and of no use to the mix of what arrives.
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
    """Samples every ``step_s`` seconds; when there are too many, every other one is dropped and the step doubles."""

    def __init__(self, step_s: float = 5.0, most: int = MOST_SAMPLES) -> None:
        self.step_s = step_s
        self._most = most
        self._samples: list[Sample] = []
        self._due_s = float("-inf")

    def due(self, now_s: float) -> bool:
        """Whether a sample is wanted at the monotonic time ``now_s``."""
        return now_s >= self._due_s

    def add(self, sample: Sample, now_s: float) -> None:
        """Keep a sample."""
        self._samples.append(sample)
        if len(self._samples) > self._most:
            # The newest stays: it is what people compare with what they see.
            self._samples = self._samples[::-2][::-1]
            self.step_s *= 2
        self._due_s = now_s + self.step_s

    def samples(self) -> list[Sample]:
        """All of them, the oldest first."""
        return list(self._samples)
