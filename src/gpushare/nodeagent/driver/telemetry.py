"""Readings of each GPU: utilization, memory, temperature, power, clocks; and its XIDs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import pynvml

_MIB: Final = 1 << 20


class GpuReading(NamedTuple):
    """One sample of a GPU (UUID). Percentages are of the driver's last sample; ``None`` if it does not report one."""

    gpu: str
    busy_percent: int | None = None
    """Part of the time in which any kernel ran."""
    copy_percent: int | None = None
    """Part of the time in which its memory was read or written."""
    used_mib: int | None = None
    free_mib: int | None = None
    celsius: int | None = None
    milliwatts: int | None = None
    driver: str = ""
    """The driver's version."""
    sm_mhz: int | None = None
    memory_mhz: int | None = None
    encoder_percent: int | None = None
    decoder_percent: int | None = None
    pcie_replays: int | None = None
    """Since the driver was loaded."""
    millijoules: int | None = None
    """Since the driver was loaded."""


class ReadsGpus(Protocol):
    """What is needed of NVML."""

    def readings(self) -> Sequence[GpuReading]:
        """One of each GPU."""


class Readings:
    """The last reading of each GPU, and its XIDs since this process started. Written in NVML's thread, read in the event loop:
    published values are never changed."""

    def __init__(self) -> None:
        self.last: Mapping[str, GpuReading] = {}
        """By UUID."""
        self.xids: Mapping[tuple[str, int], int] = {}
        """How often, by UUID and XID."""
        self.last_xid: Mapping[str, int] = {}
        """By UUID."""

    def look(self, nvml: ReadsGpus) -> None:
        """Sample all GPUs; called in NVML's thread."""
        self.last = {one.gpu: one for one in nvml.readings()}

    def lose(self) -> None:
        """The driver stopped responding: the last readings are outdated."""
        self.last = {}

    def take_xid(self, gpu: str, xid: int) -> None:
        """The driver reported it; called in NVML's thread."""
        self.xids = {**self.xids, (gpu, xid): self.xids.get((gpu, xid), 0) + 1}
        self.last_xid = {**self.last_xid, gpu: xid}


def reading_of(gpu: str, handle: Any) -> GpuReading:
    """Sample one GPU, without what it does not report."""
    rates = _optional(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle))
    memory = _optional(
        lambda: pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    ) or _optional(
        lambda: pynvml.nvmlDeviceGetMemoryInfo(handle)  # drivers before 510
    )
    return GpuReading(
        gpu,
        None if rates is None else int(rates.gpu),
        None if rates is None else int(rates.memory),
        None if memory is None else int(memory.used) // _MIB,
        None if memory is None else int(memory.free) // _MIB,
        _optional(lambda: int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))),
        _optional(lambda: int(pynvml.nvmlDeviceGetPowerUsage(handle))),
        _optional(lambda: str(pynvml.nvmlSystemGetDriverVersion())) or "",
        _optional(lambda: int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))),
        _optional(lambda: int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM))),
        # With the period of the sample in microseconds.
        _optional(lambda: int(pynvml.nvmlDeviceGetEncoderUtilization(handle)[0])),
        _optional(lambda: int(pynvml.nvmlDeviceGetDecoderUtilization(handle)[0])),
        _optional(lambda: int(pynvml.nvmlDeviceGetPcieReplayCounter(handle))),
        _optional(lambda: int(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle))),
    )


def _optional(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (pynvml.NVMLError, AttributeError):
        return None
