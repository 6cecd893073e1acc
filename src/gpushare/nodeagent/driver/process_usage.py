"""NVML's lists of processes on a GPU: memory and utilization of each."""

from collections.abc import Callable
from typing import Any, Final

import pynvml

from gpushare.nodeagent.isolation.watchdog.violations import GpuProcess

_MIB: Final = 1 << 20
#: NVML's lists of processes, with the letters of nvidia-smi for each.
_LISTS: Final = (("Compute", "C"), ("Graphics", "G"), ("MPSCompute", "MC"))
_LETTERS: Final = "MCG"
_UNKNOWN: Final = (-1, -1, -1, -1)


class ProcessUsage:
    """Samples GPUs; remembers until when their utilization was sampled."""

    def __init__(self) -> None:
        self._seen_us: dict[str, int] = {}

    def of(self, gpu: str, handle: Any) -> list[GpuProcess]:
        """The processes on the GPU with this UUID, as far as the driver reports them."""
        held: dict[int, tuple[int, str]] = {}
        for name, kind in _LISTS:
            for process in _listed(f"nvmlDeviceGet{name}RunningProcesses", handle):
                used = process.usedGpuMemory
                # One process may be in several lists, with the same value.
                mib, kinds = held.get(process.pid, (-1, ""))
                held[process.pid] = max(mib, -1 if used is None else int(used) // _MIB), kinds + kind
        busy = self._busy(gpu, handle) if held else {}
        return [
            GpuProcess(gpu, pid, mib, sm, "+".join(letter for letter in _LETTERS if letter in kinds), *others)
            for pid, (mib, kinds) in sorted(held.items())
            for sm, *others in [busy.get(pid, _UNKNOWN)]
        ]

    def _busy(self, gpu: str, handle: Any) -> dict[int, tuple[int, ...]]:
        """By PID, percent of the time since the last sample: multiprocessors, memory bus, encoder, decoder."""
        since_us = self._seen_us.get(gpu, 0)
        samples = _quiet(lambda: pynvml.nvmlDeviceGetProcessUtilization(handle, since_us))
        samples_by_pid: dict[int, list[tuple[int, ...]]] = {}
        for sample in samples:
            percents = (sample.smUtil, sample.memUtil, sample.encUtil, sample.decUtil)
            samples_by_pid.setdefault(int(sample.pid), []).append(tuple(int(percent) for percent in percents))
            self._seen_us[gpu] = max(self._seen_us.get(gpu, 0), int(sample.timeStamp))
        return {
            pid: tuple(sum(values) // len(values) for values in zip(*pid_samples, strict=True))
            for pid, pid_samples in samples_by_pid.items()
        }


def _listed(name: str, handle: Any) -> list[Any]:
    # Drivers before 510 have the second version only.
    return _quiet(lambda: getattr(pynvml, name)(handle)) or _quiet(
        lambda: getattr(pynvml, f"{name}_v2")(handle)
    )


def _quiet(call: Callable[[], Any]) -> list[Any]:
    try:
        return list(call())
    except (pynvml.NVMLError, AttributeError):
        return []
