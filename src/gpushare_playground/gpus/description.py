"""What a description says, as values."""

from collections.abc import Iterable
from dataclasses import dataclass, field


class UnknownPreset(ValueError):
    """A name that is no preset."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(f"{name}: no such preset; there are {', '.join(known)}")
        self.name = name


@dataclass(frozen=True, slots=True)
class Process:
    """A process that holds memory of a GPU; an empty name is asked of ``/proc``."""

    pid: int
    used_mib: int
    kind: str = "compute"
    name: str = ""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of a node. What is ``None`` or empty is not said, and the library's default or "not supported"."""

    model: str
    uuid: str
    pci: str
    total_mib: int
    compute: str
    reserved_mib: int = 0
    context_mib: int | None = None
    """What each CUDA context takes for itself."""
    growth: tuple[int, int, int] | None = None
    """What it takes besides, unasked: MiB at its first launch, KiB for a stream, KiB more for a process's further contexts."""
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
    """Now and at most."""
    clocks_mhz: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Now and at most, by kind."""
    fan_percent: int | None = None
    utilization_percent: tuple[int, int] | None = None
    """Of the GPU and of its memory."""
    persistence: str = ""
    ecc: str = ""
    nvswitch: int = 0
    """NVLinks that end in a switch."""
    processes: tuple[Process, ...] = ()
    fault: str = ""
    recovery: str = ""
    """What the driver wants done before the GPU works again."""
    xids: dict[int, int] = field(default_factory=dict)
    """How often each has happened so far; the library sends an event for each step up."""
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
