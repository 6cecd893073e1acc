"""GPUs that a test creates, breaks and repairs, behind the same interface as the driver's."""

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpushare.api.node.device import instance_index
from gpushare.nodeagent.driver.cgroup_memory_limits import NO_LIMIT
from gpushare.nodeagent.driver.nvml import Enumeration, FoundGpu, Hardware, Unreadable, XidEvent
from gpushare.nodeagent.driver.placements import Placement, PlacementTaken
from gpushare.nodeagent.driver.telemetry import GpuReading
from gpushare.nodeagent.errors import DriverMissing, NvmlFailed
from gpushare.nodeagent.isolation.watchdog.violations import GpuProcess


def gpu(index: int, total_mib: int = 15360, **known: object) -> FoundGpu:
    """A T4 by default; its UUID follows from ``index``."""
    uuid = f"GPU-{index + 1:08x}-1111-2222-3333-444444444444"
    found = FoundGpu(index, uuid, total_mib, "Tesla T4", f"00000000:{0x3B + index:02X}:00.0", minor=index)
    return FoundGpu(**{**{name: getattr(found, name) for name in FoundGpu.__slots__}, **known})  # type: ignore[arg-type]


def divisible(index: int) -> FoundGpu:
    """A GPU in MIG mode without instances; it has room for seven of 1g.10gb, two of 3g.40gb or one of
    7g.80gb, or a mixture.
    """
    whole = gpu(index, 81920, mig=True, model="NVIDIA A100-SXM4-80GB")
    kinds = (
        ("1g.10gb", 19, range(7), 1, 9728),
        ("3g.40gb", 9, (0, 4), 4, 40192),
        ("7g.80gb", 0, (0,), 8, 80896),
    )
    placements = tuple(
        Placement(whole.uuid, profile, profile_id, start, size, mib, (("compute-slices", int(profile[0])),))
        for profile, profile_id, starts, size, mib in kinds
        for start in starts
    )
    return replace(whole, placements=placements)


@dataclass
class ScriptedNvml:
    """``gpus`` are found; ``faults`` by UUID make probes fail; ``driver`` False: no driver at all.

    ``refuses``: the driver does not open, for that reason; ``breaks``: it opens, and every probe fails.

    ``before`` and ``after`` are called around each change of MIG instances; ``busy`` placements have one
    that a process uses.

    ``no_limits`` is the reason why the driver has no limits by cgroup, if it has none; ``limits`` are those
    that are set, in bytes by UUID and directory, and ``refused`` its errors for directories that it cannot
    limit.
    """

    gpus: list[FoundGpu] = field(default_factory=list)
    near: dict[tuple[str, str], int] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    driver: bool = True
    reports_xids: bool = True
    refuses: str = ""
    breaks: str = ""
    exchanged: bool = False
    running: list[GpuProcess] = field(default_factory=list)
    reading_of: dict[str, GpuReading] = field(default_factory=dict)
    no_limits: str = "this driver has no limits by cgroup"
    limits: dict[tuple[str, str], int] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    refused_with: int = 17
    on_limits: Callable[[str], object] = lambda cgroup: None
    set_limits: list[tuple[str, str, int]] = field(default_factory=list)
    rounds_to: int = 1
    before: Callable[[], object] = lambda: None
    after: Callable[[], object] = lambda: None
    busy: list[Placement] = field(default_factory=list)
    unreadable: tuple[Unreadable, ...] = ()
    opened: int = 0
    probes: int = 0
    is_open: bool = False
    threads: set[int] = field(default_factory=set)
    enumerated: list[FoundGpu] = field(default_factory=list)
    _xids: "queue.Queue[XidEvent]" = field(default_factory=queue.Queue)

    def send_xid(self, uuid: str, xid: int) -> None:
        self._xids.put(XidEvent(uuid, xid))

    def replaced(self) -> bool:
        return self.exchanged

    def open(self) -> None:
        self.threads.add(threading.get_ident())
        self.exchanged = False
        if not self.driver:
            raise DriverMissing("NVIDIA driver", "NVML Shared Library Not Found")
        if self.refuses:
            raise NvmlFailed("NVML", self.refuses, 999)
        self.opened += 1
        self.is_open = True

    def close(self) -> None:
        self.threads.add(threading.get_ident())
        self.is_open = False

    def gpus_changed(self) -> bool:
        return self.gpus != self.enumerated

    def enumerate(self, *, placements: bool = False) -> Enumeration:
        self.enumerated = list(self.gpus)
        found = self.gpus if placements else [replace(one, placements=(), occupied=()) for one in self.gpus]
        return Enumeration(tuple(found), self.unreadable, dict(self.near))

    def create_instance(self, placement: Placement, *, ours: bool) -> None:
        self.threads.add(threading.get_ident())
        self.before()
        occupied = self._parent(placement).occupied
        if placement in occupied and not ours:
            raise PlacementTaken(str(placement))
        if placement not in occupied and any(map(placement.overlaps, occupied)):
            raise NvmlFailed(str(placement), "Insufficient Resources", 23)
        self.divide(placement.gpu, *{*occupied, placement})
        self.after()

    def destroy_instance(self, placement: Placement) -> None:
        self.threads.add(threading.get_ident())
        self.before()
        if placement.name in [one.name for one in self.busy]:
            raise NvmlFailed(str(placement), "In use by another client", 19)
        self.divide(
            placement.gpu, *(one for one in self._parent(placement).occupied if one.name != placement.name)
        )
        self.after()

    def divide(self, uuid: str, *occupied: Placement) -> None:
        """The GPU has these instances from now on."""
        parent = next(one for one in self.gpus if one.uuid == uuid)
        others = [one for one in self.gpus if one.parent != uuid and one.uuid != uuid]
        instances = [
            FoundGpu(
                instance_index(parent.index, one.start) or 0,
                f"MIG-{one.name}",
                one.mib,
                f"{parent.model} MIG {one.profile}",
                minor=parent.minor,
                parent=uuid,
                hardware=Hardware(parent_uuid=uuid, profile=one.profile),
                capabilities=(30 + one.start, 31 + one.start),
            )
            for one in occupied
        ]
        self.gpus = [*others, replace(parent, occupied=tuple(sorted(occupied))), *instances]

    def _parent(self, placement: Placement) -> FoundGpu:
        return next(one for one in self.gpus if one.uuid == placement.gpu)

    def probe(self, uuid: str) -> str:
        self.threads.add(threading.get_ident())
        self.probes += 1
        if self.breaks:
            raise NvmlFailed("NVML", self.breaks, 18)
        return self.faults.get(uuid, "")

    def processes(self) -> Sequence[GpuProcess]:
        self.threads.add(threading.get_ident())
        return list(self.running)

    def readings(self) -> Sequence[GpuReading]:
        self.threads.add(threading.get_ident())
        return [self.reading_of[one.uuid] for one in self.gpus if one.uuid in self.reading_of]

    def can_limit(self, root: str) -> Mapping[str, str]:
        self.threads.add(threading.get_ident())
        return {one.uuid: self.no_limits for one in self.gpus}

    def limit_bytes(self, uuid: str, cgroup: str) -> int:
        self.on_limits(cgroup)
        if cgroup in self.refused:
            raise NvmlFailed(f"GPU {uuid}", self.refused[cgroup], self.refused_with)
        return self.limits.get((uuid, cgroup), NO_LIMIT)

    def set_limit(self, uuid: str, cgroup: str, hard_bytes: int) -> None:
        self.set_limits.append((uuid, cgroup, hard_bytes))
        self.limits[uuid, cgroup] = -(-hard_bytes // self.rounds_to) * self.rounds_to

    def wait_xids(self, timeout_s: float) -> Sequence[XidEvent] | None:
        if not self.reports_xids:
            return None
        try:
            return [self._xids.get(timeout=timeout_s)] if timeout_s > 0 else [self._xids.get_nowait()]
        except queue.Empty:
            return []
