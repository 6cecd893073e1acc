"""The content of a description, as values."""

from collections.abc import Iterable
from dataclasses import dataclass, field


class UnknownPreset(ValueError):
    """A name that is not a preset's."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(f"{name}: no such preset; there are {', '.join(known)}")
        self.name = name


@dataclass(frozen=True, slots=True)
class Process:
    """A process that has memory of a GPU; an empty name is looked up in ``/proc``."""

    pid: int
    used_mib: int
    kind: str = "compute"
    name: str = ""


@dataclass(frozen=True, slots=True)
class Instance:
    """A MIG instance: its profile, the memory slice at which it begins, and its compute instances ("1c@0 1c@1"; empty: one with all of it)."""

    profile: str
    start: int
    compute: str = ""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of a node. ``None`` or empty values are not written: the library's default or "not supported" applies."""

    model: str
    uuid: str
    pci: str
    total_mib: int
    compute: str
    reserved_mib: int = 0
    context_mib: int | None = None
    """Memory of each CUDA context itself."""
    growth: tuple[int, int, int] | None = None
    """Further memory, not allocated by programs: MiB at the first launch, KiB for a stream, KiB for a process's further contexts."""
    serial: str = ""
    vbios: str = ""
    minor: int | None = None
    numa: int | None = None
    cpus: str = ""
    pcie: tuple[int, int] | None = None
    """Generation and width."""
    temperature_c: int | None = None
    temperature_limits_c: tuple[int, int] | None = None
    """Slowdown and shutdown."""
    power_w: tuple[int, int] | None = None
    """Current and maximum."""
    clocks_mhz: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Current and maximum, by kind."""
    fan_percent: int | None = None
    utilization_percent: tuple[int, int] | None = None
    """Of the GPU and of its memory."""
    persistence: str = ""
    ecc: str = ""
    nvswitch: int = 0
    """NVLinks that end in a switch."""
    mig: str = ""
    instances: tuple[Instance, ...] = ()
    processes: tuple[Process, ...] = ()
    fault: str = ""
    recovery: str = ""
    """What the driver requires before the GPU works again."""
    xids: dict[int, int] = field(default_factory=dict)
    """Count of each so far; the library sends an event for each increment."""
    ecc_corrected: int = 0
    ecc_uncorrected: int = 0


@dataclass(frozen=True, slots=True)
class GpuNode:
    """A node's GPUs and its driver. Pairs of GPUs are keyed by the lower index first."""

    driver: str
    cuda: str
    gpus: tuple[Gpu, ...] = ()
    paths: dict[tuple[int, int], str] = field(default_factory=dict)
    nvlinks: dict[tuple[int, int], int] = field(default_factory=dict)
    fault: str = ""
