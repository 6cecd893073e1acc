"""What NVML says of the processes on a GPU: how much memory each holds, how much of the time it computes."""

from collections.abc import Callable
from typing import Any, Final

import pynvml

from gpushare.nodeagent.isolation.watchdog.violations import GpuProcess

_MIB: Final = 1 << 20
#: NVML's lists of processes, with the letters that nvidia-smi has for what is in each.
_LISTS: Final = (("Compute", "C"), ("Graphics", "G"), ("MPSCompute", "MC"))
_LETTERS: Final = "MCG"
_UNTOLD: Final = (-1, -1, -1, -1)


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
            GpuProcess(gpu, pid, mib, sm, "+".join(one for one in _LETTERS if one in kinds), *others)
            for pid, (mib, kinds) in sorted(held.items())
            for sm, *others in [busy.get(pid, _UNTOLD)]
        ]

    def _busy(self, gpu: str, handle: Any) -> dict[int, tuple[int, ...]]:
        """By PID, percent of the time since the last look: of the processors, memory's bus, the encoder, the decoder."""
        since_us = self._seen_us.get(gpu, 0)
        samples = _quiet(lambda: pynvml.nvmlDeviceGetProcessUtilization(handle, since_us))
        told: dict[int, list[tuple[int, ...]]] = {}
        for sample in samples:
            percents = (sample.smUtil, sample.memUtil, sample.encUtil, sample.decUtil)
            told.setdefault(int(sample.pid), []).append(tuple(int(one) for one in percents))
            self._seen_us[gpu] = max(self._seen_us.get(gpu, 0), int(sample.timeStamp))
        return {
            pid: tuple(sum(one) // len(one) for one in zip(*looks, strict=True))
            for pid, looks in told.items()
        }


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
