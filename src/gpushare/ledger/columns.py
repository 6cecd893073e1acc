"""The figures by which requests are fitted, for all nodes at once: arrays with a row per GPU and a column per node.

GPU-major: a request is compared GPU by GPU over all nodes, then the few rows are joined. So each operation reads
contiguous memory as long as the cluster. Columns are handed out and returned; their number grows by doubling.
Column 0 stands for all unknown nodes and fits nothing.
"""

from collections.abc import Iterator
from copy import copy
from typing import Final, Self

import numpy as np

from gpushare.api.node.device import Placement
from gpushare.api.request.gpu_selection import GpuSelection
from gpushare.api.request.request import Request
from gpushare.ledger.arrays import Ints, Mask, Places
from gpushare.ledger.gpu_kinds import NO_GPU, GpuKinds
from gpushare.ledger.node_book import SHUT, UNKNOWN_CPU_MILLI, GpuBook, NodeBook
from gpushare.ledger.placement.policies import number_of
from gpushare.ledger.priorities import Lacking, Priorities, levels

#: The column of unknown nodes.
NO_NODE: Final = 0
#: Changes that are recorded one by one. A reader that has missed more treats all columns as changed.
MOST_NOTED: Final = 4096

_GPU_PLANES: Final = {
    "fit_units": (np.int32, SHUT),
    "room_units": (np.int32, SHUT),
    "free_core": (np.int32, SHUT),
    "pods": (np.int32, 0),
    "used_core": (np.int32, 0),
    "units": (np.int32, 0),
    "index": (np.int32, 0),
    "instance": (np.int32, 0),
    "used_mib": (np.int64, 0),
    "taken_mib": (np.int64, 0),
    "total_mib": (np.int64, 0),
    "kind": (np.int32, NO_GPU),
    "uuid_hash": (np.int64, 0),
}
_NODE_LINES: Final = {
    "unit_mib": (np.int32, 0),
    "max_pods": (np.int32, 0),
    "largest_units": (np.int32, 0),
    "healthy_units": (np.int32, SHUT),
    "noted": (np.int32, 0),
    "memory_pods": (np.int32, 0),
    "core_pods": (np.int32, 0),
    "placement": (np.int32, 0),
    "no_memory": (np.int32, 0),
    "no_core": (np.int32, 0),
    "no_whole": (np.int32, 0),
    "near": (np.int32, 0),
    "one_gpu": (np.int32, 0),
    "full": (np.int32, 0),
    "by_fragments": (np.int32, 0),
    "free_cpu_milli": (np.int64, UNKNOWN_CPU_MILLI),
}


class Columns:
    """Planes are (GPUs, nodes), lines are (nodes,). ``width`` is the number of columns that were ever in use."""

    fit_units: Ints
    room_units: Ints
    free_core: Ints
    pods: Ints
    used_core: Ints
    units: Ints
    index: Ints
    instance: Ints
    """1 for a MIG instance."""
    used_mib: Ints
    taken_mib: Ints
    """What pods hold, are nominated for, and what unmanaged processes use."""
    total_mib: Ints
    kind: Ints
    """What selections see of the GPU (``ledger.gpu_kinds``), together with ``uuid_hash``."""
    uuid_hash: Ints
    unit_mib: Ints
    max_pods: Ints
    largest_units: Ints
    """Units of the largest GPU."""
    healthy_units: Ints
    """Units of the largest GPU in service; ``SHUT`` without one."""
    noted: Ints
    """1 if a GPU is out of service, or used without an allocation: refusals for lack of memory or compute say so."""
    memory_pods: Ints
    core_pods: Ints
    """Pods with memory alone, and pods with compute too; nominated pods included."""
    placement: Ints
    """The number of the node's placement policy (``placement.number_of``)."""
    no_memory: Ints
    """1 if the node takes no new requests, whatever is free."""
    no_core: Ints
    """1 if it takes no requests for compute."""
    no_whole: Ints
    """1 if it takes no requests for whole GPUs (``aliyun.com/gpu``)."""
    near: Ints
    """The number of its topology matrix (``ledger.placement.topology_sets``); 0 for none."""
    one_gpu: Ints
    """1 if a pod gets at most one GPU."""
    full: Ints
    """1 if the node's pod cap is reached."""
    by_fragments: Ints
    """1 if the node's placement policy is ``fragmentation``."""
    free_cpu_milli: Ints
    """Free thousandths of processors; ``UNKNOWN_CPU_MILLI`` if not known."""

    def __init__(self, nodes: int = 64, gpus: int = 1) -> None:
        self._capacity = nodes
        self._rows = gpus
        self.width = NO_NODE + 1
        self._returned: list[int] = []
        self._noted: list[int] = []
        self._forgotten = 0
        self.priorities = Priorities(gpus, nodes)
        """What pods of each priority hold."""
        self._kinds = GpuKinds()
        for name, (dtype, empty) in _GPU_PLANES.items():
            setattr(self, name, np.full((gpus, nodes), empty, dtype))
        for name, (dtype, empty) in _NODE_LINES.items():
            setattr(self, name, np.full(nodes, empty, dtype))

    @property
    def changes(self) -> int:
        """The number of changes so far, over all columns."""
        return self._forgotten + len(self._noted)

    def changed_since(self, changes: int) -> set[int] | None:
        """The columns that changed after change number ``changes``; ``None``: any may have, or there are fewer changes than that."""
        return None if changes < self._forgotten else set(self._noted[changes - self._forgotten :])

    def take(self) -> int:
        """An empty column for a node."""
        if self._returned:
            return self._returned.pop()
        if self.width == self._capacity:
            self._resize(self._rows, 2 * self._capacity)
        self.width += 1
        return self.width - 1

    def give_back(self, column: int) -> None:
        """Empty ``column`` and reuse it for another node."""
        self.empty(column)
        self._returned.append(column)

    def write_node(self, node: NodeBook) -> None:
        """Copy all figures of a known node into its column, which is empty."""
        devices = node.devices
        assert devices is not None
        column = node.column
        if len(node.present) > self._rows:
            self._resize(len(node.present), self._capacity)
        healthy = [gpu.units for gpu in node.present if gpu.device is not None and gpu.device.in_service]
        self.unit_mib[column] = devices.unit.mib
        self.max_pods[column] = devices.max_pods or 0
        self.largest_units[column] = max((gpu.units for gpu in node.present), default=0)
        self.healthy_units[column] = max(healthy, default=SHUT)
        self.noted[column] = any(not gpu.in_service or gpu.foreign_mib for gpu in devices.devices)
        self.placement[column] = number_of(devices.placement)
        self.by_fragments[column] = devices.placement is Placement.FRAGMENTATION
        self.free_cpu_milli[column] = node.free_cpu_milli
        self.one_gpu[column] = not devices.mode.gives_several
        self.no_memory[column], self.no_core[column], self.no_whole[column] = map(bool, node.standing)
        self.near[column] = node.near
        for gpu in node.present:
            assert gpu.device is not None
            self.units[gpu.row, column] = gpu.units
            self.index[gpu.row, column] = gpu.device.index
            self.instance[gpu.row, column] = gpu.device.is_instance
            self.total_mib[gpu.row, column] = gpu.device.total_mib
            self.kind[gpu.row, column] = self._kinds.number_of(gpu.device)
            self.uuid_hash[gpu.row, column] = hash(gpu.device.uuid)
            self.write_gpu(column, gpu)
        self.write_kinds(node)

    def write_gpu(self, column: int, gpu: GpuBook) -> None:
        """Copy the figures of a GPU that depend on its pods."""
        self._note(column)
        row = gpu.row
        self.fit_units[row, column] = gpu.fit_units
        self.room_units[row, column] = gpu.room_units
        self.free_core[row, column] = gpu.free_core
        self.pods[row, column] = len(gpu.pods)
        self.used_core[row, column] = gpu.used_core
        self.used_mib[row, column] = gpu.used_mib
        self.taken_mib[row, column] = gpu.taken_mib
        self.priorities.write(row, column, gpu.by_priority)
        if len(gpu.by_priority) > 1 or not gpu.pods:
            gpu.by_priority = {priority: held for priority, held in gpu.by_priority.items() if held[2]}

    def write_kinds(self, node: NodeBook) -> None:
        """Copy how many pods of each kind the node has, nominated ones included."""
        self._note(node.column)
        self.memory_pods[node.column] = node.of_kind(core=False)
        self.core_pods[node.column] = node.of_kind(core=True)
        self.full[node.column] = node.is_full

    def write_cpu(self, node: NodeBook) -> None:
        """Copy how many processors are free on the node."""
        self._note(node.column)
        self.free_cpu_milli[node.column] = node.free_cpu_milli

    def empty(self, column: int) -> None:
        """Reset the column to a node that has nothing and fits nothing."""
        self._note(column)
        for name, (_, empty) in _GPU_PLANES.items():
            getattr(self, name)[:, column] = empty
        for name, (_, empty) in _NODE_LINES.items():
            getattr(self, name)[column] = empty
        self.priorities.empty(column)

    def selection_rules(self, selection: GpuSelection, at: Places | None = None) -> Ints:
        """As ``GpuKinds.rules``, of the GPUs in the columns ``at`` (``None``: all)."""
        if at is None:
            return self._kinds.rules(selection, self.kind, self.uuid_hash)
        return self._kinds.rules(selection, self.kind.take(at, axis=1), self.uuid_hash.take(at, axis=1))

    def allowed(self, selection: GpuSelection, at: Places | None = None) -> Mask:
        """The GPUs in the columns ``at`` (``None``: all) that a pod with ``selection`` may have."""
        allowed: Mask = self.selection_rules(selection, at) == 0
        return allowed

    def placements(self, request: Request, at: Places | None = None) -> Ints:
        """The numbers of the policies that choose GPUs for ``request`` on the nodes in the columns ``at`` (``None``: all)."""
        numbers = self.placement if at is None else self.placement.take(at)
        return (
            numbers
            if request.gpu_placement is None
            else np.full_like(numbers, number_of(request.gpu_placement))
        )

    def only(self, gpus: Mask, at: Places) -> Self:
        """A copy in which the nodes in the columns ``at`` have these ``gpus`` only, for reasons about them; other columns are undefined."""
        copied = copy(self)
        for name in ("fit_units", "room_units", "units", "total_mib"):
            plane = getattr(self, name)
            limited = np.empty_like(plane)
            limited[:, at] = np.where(gpus, plane.take(at, axis=1), _GPU_PLANES[name][1])
            setattr(copied, name, limited)
        for name in ("largest_units", "healthy_units"):
            setattr(copied, name, np.empty_like(getattr(self, name)))
        units = copied.units.take(at, axis=1)
        in_service = copied.room_units.take(at, axis=1) != SHUT
        copied.largest_units[at] = units.max(axis=0, initial=0)
        copied.healthy_units[at] = np.where(in_service, units, SHUT).max(axis=0, initial=SHUT)
        return copied

    def eviction_stages(self, request: Request, priority: int | Ints, at: Places) -> Iterator[Places] | None:
        """Places in ``at`` that could take ``request`` after evicting pods below ``priority``, those with the least important pods first.

        ``priority`` may differ by place. ``None``: unknown. The result is an upper bound: no place that could take it is left out.
        """
        classes = self.priorities.below(priority, at)
        if classes is None:
            return None
        closed = (self.no_whole if request.by_gpu else self.no_memory).take(at) != 0
        if request.unit_mib:
            closed = closed | (self.unit_mib.take(at) != request.unit_mib)
        if request.wants_core:
            closed = closed | (self.no_core.take(at) != 0)
        if request.gpu_count > 1:
            closed = closed | (self.one_gpu.take(at) != 0)
        usable = (self.room_units.take(at, axis=1) != SHUT) & ~closed
        if request.selection is not None:
            usable &= self.allowed(request.selection, at)
        if not request.takes_instances:
            usable &= self.instance.take(at, axis=1) == 0
        lacking = Lacking(
            total_mib=self.total_mib.take(at, axis=1) * usable,
            taken_mib=self.taken_mib.take(at, axis=1),
            units=self.units.take(at, axis=1),
            used_core=self.used_core.take(at, axis=1),
            pods=self.pods.take(at, axis=1),
            max_pods=self.max_pods.take(at),
        )
        return levels(lacking, classes, request)

    def _note(self, column: int) -> None:
        if len(self._noted) >= MOST_NOTED:
            self._forget_changes()
        self._noted.append(column)

    def _forget_changes(self) -> None:
        # One more than there were: a reader that has seen all earlier changes has not seen this one.
        self._forgotten += len(self._noted) + 1
        self._noted.clear()

    def _resize(self, rows: int, capacity: int) -> None:
        for name, (dtype, empty) in _GPU_PLANES.items():
            larger = np.full((rows, capacity), empty, dtype)
            larger[: self._rows, : self._capacity] = getattr(self, name)
            setattr(self, name, larger)
        for name, (dtype, empty) in _NODE_LINES.items():
            line = np.full(capacity, empty, dtype)
            line[: self._capacity] = getattr(self, name)
            setattr(self, name, line)
        self.priorities.resize(rows, capacity)
        self._rows, self._capacity = rows, capacity
        self._forget_changes()
