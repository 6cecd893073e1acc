"""What NVML says of the processes on a GPU: how much memory each holds, how much of the time it computes."""

from collections.abc import Callable
from typing import Any, Final

import pynvml

from gpushare.nodeagent.isolation.judging import GpuProcess

_MIB: Final = 1 << 20
#: NVML's lists of processes, with the letters that nvidia-smi has for what is in each.
_LISTS: Final = (("Compute", "C"), ("Graphics", "G"), ("MPSCompute", "MC"))
_LETTERS: Final = "MCG"


class ProcessUsage:
    """Asks about one GPU (UUID ``gpu``) after the other; remembers up to when it knows of computing."""

    def __init__(self) -> None:
        self._seen_us: dict[str, int] = {}

    def of(self, gpu: str, handle: Any) -> list[GpuProcess]:
        """The processes that the driver tells of, none where it tells of none."""
        held: dict[int, tuple[int, str]] = {}
        for name, kind in _LISTS:
            for process in _listed(f"nvmlDeviceGet{name}RunningProcesses", handle):
                told = process.usedGpuMemory
                # One process may be in several lists, with the same figure.
                mib, kinds = held.get(process.pid, (-1, ""))
                held[process.pid] = max(mib, -1 if told is None else int(told) // _MIB), kinds + kind
        busy = self._busy(gpu, handle) if held else {}
        return [
            GpuProcess(gpu, pid, mib, busy.get(pid, -1), "+".join(one for one in _LETTERS if one in kinds))
            for pid, (mib, kinds) in sorted(held.items())
        ]

    def _busy(self, gpu: str, handle: Any) -> dict[int, int]:
        since_us = self._seen_us.get(gpu, 0)
        samples = _quiet(lambda: pynvml.nvmlDeviceGetProcessUtilization(handle, since_us))
        told: dict[int, list[int]] = {}
        for sample in samples:
            told.setdefault(int(sample.pid), []).append(int(sample.smUtil))
            self._seen_us[gpu] = max(self._seen_us.get(gpu, 0), int(sample.timeStamp))
        return {pid: sum(percents) // len(percents) for pid, percents in told.items()}


def _listed(name: str, handle: Any) -> list[Any]:
    # Drivers before 510 have the second form alone.
    return _quiet(lambda: getattr(pynvml, name)(handle)) or _quiet(
        lambda: getattr(pynvml, f"{name}_v2")(handle)
    )


def _quiet(call: Callable[[], Any]) -> list[Any]:
    try:
        return list(call())
    except (pynvml.NVMLError, AttributeError):
        return []
