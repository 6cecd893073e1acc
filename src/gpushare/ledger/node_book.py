"""What is held on one node, GPU by GPU, in plain integers.

These are the books; the arrays in ``columns`` are a copy of the figures that fitting needs. A GPU has an entry as soon
as its node reports it or a pod holds a share of it, whichever comes first.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from gpushare.api.allocation.allocation import GpuShare, share_of
from gpushare.api.node.device import Device, NodeDevices
from gpushare.api.quantity import granted_mib
from gpushare.api.request.request import Request
from gpushare.ledger.placement.policies import Candidate

#: Nothing fits, not even a request for 0 units.
SHUT = -1
#: Free processors of a node for which they are unknown: enough for anything its GPUs take.
UNKNOWN_CPU_MILLI = 1 << 31


@dataclass(slots=True, eq=False)
class GpuBook:
    """One GPU. ``device`` is ``None`` while the node does not have it, but pods hold a share of it.

    ``room_units`` is the largest request that its free memory takes; ``SHUT`` if the GPU is missing or out of service.
    ``fit_units`` is the same, but also ``SHUT`` at the pod cap or if the node takes nothing new. ``free_core`` is in percent;
    ``SHUT`` if the node does not share compute. ``refresh`` computes them. ``used_mib`` is allocated to pods; what unmanaged
    processes use is the device's ``foreign_mib``. ``nominated_mib``, ``nominated_core`` and ``nominated_pods`` are reserved for
    pods whose victims have not ended yet.
    """

    device: Device | None = None
    row: int = 0
    units: int = 0
    used_mib: int = 0
    used_core: int = 0
    nominated_mib: int = 0
    nominated_core: int = 0
    nominated_pods: int = 0
    pods: dict[str, None] = field(default_factory=dict)
    by_priority: dict[int, list[int]] = field(default_factory=dict)
    """MiB, percent and number of pods by priority."""
    room_units: int = SHUT
    fit_units: int = SHUT
    free_core: int = SHUT

    @property
    def taken_mib(self) -> int:
        """MiB that cannot be allocated: held by pods, nominated for pods, or used by unmanaged processes."""
        return (
            self.used_mib + self.nominated_mib + (self.device.foreign_mib if self.device is not None else 0)
        )

    @property
    def is_untouched(self) -> bool:
        """Whether no pod and no other process uses anything of it."""
        return not self.pods and not self.taken_mib

    def suits(self, request: Request) -> bool:
        """Whether it is one that ``request`` may have, whatever is free on it."""
        if self.device is None or not request.allows(self.device):
            return False
        return request.takes_instances or not self.device.is_instance

    def count(self, priority: int, share: GpuShare, step: int) -> None:
        """Add (1) or remove (-1) a pod's ``share``, under the pod's priority."""
        self.used_mib += step * share.mib
        self.used_core += step * share.core_percent
        amounts = self.by_priority.setdefault(priority, [0, 0, 0])
        amounts[0] += step * share.mib
        amounts[1] += step * share.core_percent
        amounts[2] += step

    def refresh(self, node: NodeDevices, *, shut: bool) -> None:
        """Compute what fits on a GPU that the node has; ``shut``: the node takes nothing new."""
        assert self.device is not None
        self.room_units = self.fit_units = self.free_core = SHUT
        if node.mode.gives_core:
            self.free_core = max(100 - self.used_core - self.nominated_core, 0)
        if not self.device.in_service:
            return
        # The largest n with granted_mib(total, n, units) <= free, see model.quantity.
        total_mib = self.device.total_mib
        free_mib = max(total_mib - self.taken_mib, 0)
        self.room_units = ((free_mib + 1) * self.units - 1) // total_mib
        if not shut and (node.max_pods is None or len(self.pods) + self.nominated_pods < node.max_pods):
            self.fit_units = self.room_units


@dataclass(slots=True, eq=False)
class NodeBook:
    """One node: its GPUs by UUID, those present in order of index, and the number of pods of each kind.

    ``devices`` is ``None`` while the node is unknown, else ``column`` is its place in the arrays. ``standing`` says why the node
    takes no new requests, whatever is free: for memory, for compute too, for a number of GPUs; empty if it does. ``near`` is the
    number of its topology matrix. ``free_cpu_milli`` is in thousandths of processors. ``memory_pods`` and ``core_pods`` hold
    something here; ``nominated_memory_pods`` and ``nominated_core_pods`` are pending until their victims have ended. A pod cap
    counts both.
    """

    name: str
    devices: NodeDevices | None = None
    column: int = 0
    standing: tuple[str, str, str] = ("", "", "")
    near: int = 0
    gpus: dict[str, GpuBook] = field(default_factory=dict)
    present: list[GpuBook] = field(default_factory=list)
    memory_pods: int = 0
    core_pods: int = 0
    nominated_memory_pods: int = 0
    nominated_core_pods: int = 0
    free_cpu_milli: int = UNKNOWN_CPU_MILLI

    @property
    def shut(self) -> bool:
        """Whether the node takes nothing new, whatever is free."""
        return bool(self.standing[0]) or self.is_full

    @property
    def is_full(self) -> bool:
        """Whether the node's pod cap is reached, nominated pods included."""
        cap = None if self.devices is None else self.devices.max_node_pods
        return cap is not None and self.of_kind(core=False) + self.of_kind(core=True) >= cap

    def of_kind(self, *, core: bool) -> int:
        """The number of pods with compute, or without, that hold something here or are nominated."""
        return (
            self.core_pods + self.nominated_core_pods
            if core
            else self.memory_pods + self.nominated_memory_pods
        )

    @property
    def idle(self) -> bool:
        """Whether no pod holds anything here."""
        return not self.memory_pods and not self.core_pods

    def gpu(self, uuid: str) -> GpuBook:
        """The entry of a GPU, created if missing."""
        book = self.gpus.get(uuid)
        if book is None:
            book = self.gpus[uuid] = GpuBook()
        return book

    def counted(self, share: GpuShare) -> GpuShare:
        """``share`` as it counts here: with the UUID and MiB of the node's GPU.

        It differs from the recorded share only where GPUs are known by index only, in the record or here.
        """
        gpu = self.gpus.get(share.uuid)
        if self.devices is None or (gpu is not None and gpu.device is not None):
            return share
        device = self.devices.device_of(share.uuid, share.index)
        if device is None:
            return share
        return share_of(device, share.device_units, share.units, share.core_percent)

    def uids(self) -> set[str]:
        """The pods that hold something here."""
        return {uid for gpu in self.gpus.values() for uid in gpu.pods}

    def candidates(self, request: Request) -> Iterator[Candidate]:
        """The GPUs that can take ``request`` now."""
        if request.by_gpu:
            yield from self._free_gpus(request)
            return
        if self.of_kind(core=not request.wants_core):
            return
        if request.gpu_count > 1 and self.devices is not None and not self.devices.mode.gives_several:
            return
        for gpu in self.present:
            if (
                not gpu.suits(request)
                or gpu.fit_units < request.memory_units
                or (request.wants_core and gpu.free_core < request.core_percent)
            ):
                continue
            if request.whole_device and not gpu.is_untouched:
                continue
            assert gpu.device is not None
            total_mib = gpu.device.total_mib
            free_mib = total_mib - gpu.taken_mib
            asked_mib = granted_mib(total_mib, request.memory_units, gpu.units)
            yield Candidate(gpu.row, free_mib, free_mib - asked_mib, len(gpu.pods))

    def _free_gpus(self, request: Request) -> Iterator[Candidate]:
        """The unused GPUs, for a request that counts GPUs."""
        if self.standing[2] or self.is_full:
            return
        for gpu in self.present:
            if gpu.suits(request) and gpu.room_units >= request.memory_units and gpu.is_untouched:
                assert gpu.device is not None
                yield Candidate(gpu.row, gpu.device.total_mib, 0, 0)


def same_gpus(before: NodeDevices | None, after: NodeDevices) -> bool:
    """Whether allocations are on the same GPUs after as before, with the same MiB."""
    return before is not None and [(gpu.uuid, gpu.index, gpu.total_mib) for gpu in before.devices] == [
        (gpu.uuid, gpu.index, gpu.total_mib) for gpu in after.devices
    ]
