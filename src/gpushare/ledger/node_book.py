"""What is held on one node, GPU by GPU, in plain integers.

These are the books; the arrays in ``columns`` are a copy of the figures that fitting needs. A GPU has
its entry here as soon as it is there or somebody holds something of it, whichever comes first.
"""

from collections.abc import Iterator

from gpushare.api.allocation.allocation import GpuShare, share_of
from gpushare.api.node.device import Device, NodeDevices
from gpushare.api.quantity import granted_mib
from gpushare.api.request.request import Request
from gpushare.ledger.placement.policies import Candidate

#: Nothing fits: not even a request of 0 units.
SHUT = -1
#: Free processors of a node of which nobody says how many they are: enough for all that its GPUs take.
UNKNOWN_CPU_MILLI = 1 << 31


class GpuBook:
    """One GPU: ``device`` is ``None`` while the node does not have it, but pods hold a share of it.

    ``room_units`` is the largest request that its free memory takes, ``SHUT`` where it is absent or
    out of service; ``fit_units`` is the same, but ``SHUT`` too at the pod cap or where the node takes nothing
    new; ``free_core`` is in percent, ``SHUT`` where the node gives no compute. ``refresh`` computes them.
    ``used_mib`` is what pods were given; what others hold of the GPU besides is the device's ``foreign_mib``.
    ``kept_mib``, ``kept_core`` and ``kept_pods`` are for pods that wait for others to end here.
    """

    __slots__ = (
        "by_priority",
        "device",
        "fit_units",
        "free_core",
        "kept_core",
        "kept_mib",
        "kept_pods",
        "pods",
        "room_units",
        "row",
        "units",
        "used_core",
        "used_mib",
    )

    def __init__(self) -> None:
        self.device: Device | None = None
        self.row = 0
        self.units = 0
        self.used_mib = 0
        self.used_core = 0
        self.kept_mib = 0
        self.kept_core = 0
        self.kept_pods = 0
        self.pods: dict[str, None] = {}
        self.by_priority: dict[int, list[int]] = {}
        """MiB, percent and number that pods of a priority hold."""
        self.room_units = SHUT
        self.fit_units = SHUT
        self.free_core = SHUT

    @property
    def taken_mib(self) -> int:
        """What cannot be given: to pods it is given already, or kept for them, or others hold it."""
        return self.used_mib + self.kept_mib + (self.device.foreign_mib if self.device is not None else 0)

    @property
    def is_untouched(self) -> bool:
        """Whether nobody holds anything of it, no pod and nobody else."""
        return not self.pods and not self.taken_mib

    def count(self, priority: int, share: GpuShare, step: int) -> None:
        """Count a pod's ``share`` in (1) or out (-1), the pod's priority with it."""
        self.used_mib += step * share.mib
        self.used_core += step * share.core_percent
        amounts = self.by_priority.setdefault(priority, [0, 0, 0])
        amounts[0] += step * share.mib
        amounts[1] += step * share.core_percent
        amounts[2] += step

    def refresh(self, node: NodeDevices, *, shut: bool) -> None:
        """Compute what fits on a GPU that is there; ``shut`` says that the node takes nothing new."""
        assert self.device is not None
        self.room_units = self.fit_units = self.free_core = SHUT
        if node.mode.gives_core:
            self.free_core = max(100 - self.used_core - self.kept_core, 0)
        if not self.device.in_service:
            return
        # The largest n with granted_mib(total, n, units) <= free, see model.quantity.
        total_mib = self.device.total_mib
        free_mib = max(total_mib - self.taken_mib, 0)
        self.room_units = ((free_mib + 1) * self.units - 1) // total_mib
        if not shut and (node.max_pods is None or len(self.pods) + self.kept_pods < node.max_pods):
            self.fit_units = self.room_units


class NodeBook:
    """One node: its GPUs by UUID, those present in order of index, and how many pods of which kind it has.

    ``devices`` is ``None`` while the node is not known; ``column`` is its place in the arrays then.
    ``standing`` says why the node takes no new requests for memory, whatever is free, why none for
    compute too, and why none that counts GPUs; empty where it does. ``near`` is the number of what is known of how near its
    GPUs are to each other. ``free_cpu_milli`` are thousandths of processors that its pods leave. ``memory_pods`` and ``core_pods``
    hold something here, ``kept_memory`` and ``kept_core`` of either kind wait for others to end here: who counts its pods counts both.
    """

    __slots__ = (
        "column",
        "core_pods",
        "devices",
        "free_cpu_milli",
        "gpus",
        "kept_core",
        "kept_memory",
        "memory_pods",
        "name",
        "near",
        "present",
        "standing",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.devices: NodeDevices | None = None
        self.column = 0
        self.standing = ("", "", "")
        self.near = 0
        self.gpus: dict[str, GpuBook] = {}
        self.present: list[GpuBook] = []
        self.memory_pods = 0
        self.core_pods = 0
        self.kept_memory = 0
        self.kept_core = 0
        self.free_cpu_milli = UNKNOWN_CPU_MILLI

    @property
    def shut(self) -> bool:
        """Whether the node takes nothing new, whatever is free."""
        return bool(self.standing[0]) or self.is_full

    @property
    def is_full(self) -> bool:
        """Whether as many pods as may hold something here, or have room kept for them."""
        cap = None if self.devices is None else self.devices.max_node_pods
        return cap is not None and self.of_kind(core=False) + self.of_kind(core=True) >= cap

    def of_kind(self, *, core: bool) -> int:
        """How many pods with compute, or without, hold something here, or have room kept for them."""
        return self.core_pods + self.kept_core if core else self.memory_pods + self.kept_memory

    @property
    def idle(self) -> bool:
        """Whether no pod holds anything here."""
        return not self.memory_pods and not self.core_pods

    def gpu(self, uuid: str) -> GpuBook:
        """The entry of a GPU, a new one where there is none."""
        book = self.gpus.get(uuid)
        if book is None:
            book = self.gpus[uuid] = GpuBook()
        return book

    def counted(self, share: GpuShare) -> GpuShare:
        """``share`` as it counts here: with the UUID and the MiB of the GPU that the node has for it.

        It is the recorded one but where GPUs are known by index only, there or here.
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
            if gpu.fit_units < request.memory_units or (
                request.wants_core and gpu.free_core < request.core_percent
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
        """The GPUs of which nobody holds anything, for a request that counts GPUs."""
        if self.standing[2] or self.is_full:
            return
        for gpu in self.present:
            if gpu.room_units >= request.memory_units and gpu.is_untouched:
                assert gpu.device is not None
                yield Candidate(gpu.row, gpu.device.total_mib, 0, 0)


def same_gpus(before: NodeDevices | None, after: NodeDevices) -> bool:
    """Whether what is held lies on the same GPUs after as before, with the same MiB."""
    return before is not None and [(gpu.uuid, gpu.index, gpu.total_mib) for gpu in before.devices] == [
        (gpu.uuid, gpu.index, gpu.total_mib) for gpu in after.devices
    ]
