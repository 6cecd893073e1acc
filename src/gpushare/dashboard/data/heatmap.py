"""The heat map's figures: a row of GPUs per node, in arrays that are sent without conversion.

A node has a slot, a small number that it keeps while it is known; free slots are reused. Changes since the last delta are recorded per
slot, so the cost of a change depends on the node, not on the size of the cluster. Unknown figures are ``UNKNOWN``, never 0; so is
allocated compute on nodes that do not allocate compute.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from gpushare.api.node.device import NodeDevices
from gpushare.ledger.results import NodeUsage

MAGIC: Final = b"GPB1"
UNKNOWN: Final = -1
_ALIGNMENT: Final = 8
_MAX_INT16: Final = 32767
_INITIAL_SLOTS: Final = 16
#: Rows of a delta that are sent in one message: a page processes them in one or two milliseconds, and stays responsive.
MAX_ROWS: Final = 128

#: Column → element type, in the order of the columns after the header.
COLUMNS: Final[Mapping[str, str]] = {
    "total_mib": "<i4",
    "allocated_mib": "<i4",
    "used_mib": "<i4",
    "foreign_mib": "<i4",
    "allocated_core": "<i2",
    "busy_percent": "<i2",
    "pods": "<i2",
    "state": "|u1",
}
#: Columns from the ledger; the others come from the node agents.
_LEDGER_COLUMNS: Final = ("total_mib", "allocated_mib", "foreign_mib", "allocated_core", "pods", "state")
_USAGE_COLUMNS: Final = ("used_mib", "busy_percent")


class State(IntEnum):
    """State of a GPU."""

    ABSENT = 0
    IN_SERVICE = 1
    UNHEALTHY = 2
    CORDONED = 3
    CLOSED = 4
    """The node takes no new pods, or the GPU still has pods from before a change of the node's mode."""


class Real(NamedTuple):
    """Usage of a GPU by processes: MiB, and percent of its time; ``UNKNOWN`` where it is not reported."""

    used_mib: int = UNKNOWN
    busy_percent: int = UNKNOWN


class BoardNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """Attributes of a node sent with its GPUs' figures; ``indices`` of the GPUs, unless they are 0, 1, 2, …; ``labels``, if there are MIG instances."""

    name: str
    mode: str
    unit_mib: int
    model: str
    refusal: str
    gpus: int
    indices: tuple[int, ...] = ()
    labels: tuple[str, ...] = ()


class Board:
    """The arrays, and their changed slots."""

    def __init__(self) -> None:
        self.stride = 1
        self.nodes: list[BoardNode | None] = []
        self._slots: dict[str, int] = {}
        self._free_slots: list[int] = []
        self._changed: set[int] = set()
        self._real_changed: set[int] = set()
        self._planes = {
            name: np.full((_INITIAL_SLOTS, 1), _empty(name), kind) for name, kind in COLUMNS.items()
        }

    def slot(self, name: str) -> int | None:
        """The node's slot, if it is known."""
        return self._slots.get(name)

    def plane(self, name: str) -> npt.NDArray[Any]:
        """Read-only array (slots in use, GPUs) of a column of ``COLUMNS``."""
        return self._planes[name][: len(self.nodes)]

    @property
    def gpus(self) -> int:
        """Number of GPUs on the board."""
        return int(np.count_nonzero(self.plane("state")))

    # --- changes --------------------------------------------------------------------------------

    def put(self, devices: NodeDevices, usage: NodeUsage, *, cordoned: bool = False) -> None:
        """Set the node's allocations; its usage is kept while the number of GPUs stays the same. ``cordoned``: the whole node is."""
        indices = tuple(device.index for device in devices.devices)
        shown = BoardNode(
            devices.name,
            devices.mode.value,
            devices.unit.mib,
            _models(devices),
            devices.refusal,
            len(usage.gpus),
            () if indices == tuple(range(len(indices))) else indices,
            tuple(device.label for device in devices.devices)
            if any(device.is_instance for device in devices.devices)
            else (),
        )
        slot = self._slots.get(devices.name)
        if slot is None:
            slot = self._allocate_slot(devices.name)
        self._widen(len(usage.gpus))
        before = self.nodes[slot]
        rows = [self._planes[name][slot] for name in _LEDGER_COLUMNS]
        old = [row.copy() for row in rows]
        closed = bool(devices.refusal) or not devices.mode.offers_gpus
        for row in rows:
            row[:] = 0
        for position, (gpu, device) in enumerate(zip(usage.gpus, devices.devices, strict=True)):
            if device.is_faulty:
                state = State.UNHEALTHY
            elif cordoned or device.cordoned:
                state = State.CORDONED
            else:
                state = State.CLOSED if closed or device.kept_back else State.IN_SERVICE
            # Without allocation of compute, 0 would mean that all compute is free.
            core = gpu.used_core if devices.mode.limits_compute else UNKNOWN
            figures = (gpu.total_mib, gpu.used_mib, gpu.foreign_mib, core, len(gpu.pods), state)
            for row, figure in zip(rows, figures, strict=True):
                row[position] = min(figure, np.iinfo(row.dtype).max)
        if before is not None and before.gpus != shown.gpus:
            self._forget_real(slot)
        self.nodes[slot] = shown
        if before != shown or any(
            not np.array_equal(row, previous) for row, previous in zip(rows, old, strict=True)
        ):
            self._changed.add(slot)

    def remove(self, name: str) -> None:
        """Remove the node."""
        slot = self._slots.pop(name, None)
        if slot is None:
            return
        self.nodes[slot] = None
        for column, plane in self._planes.items():
            plane[slot] = _empty(column)
        self._free_slots.append(slot)
        self._changed.add(slot)

    def put_real(self, name: str, figures: Sequence[Real]) -> None:
        """Set the usage of the node's GPUs, in the board's order; empty if unknown."""
        slot = self._slots.get(name)
        if slot is None:
            return
        used, busy = (self._planes[column][slot] for column in _USAGE_COLUMNS)
        old = used.copy(), busy.copy()
        self._forget_real(slot)
        for position, real in enumerate(figures[: self.stride]):
            used[position], busy[position] = real.used_mib, min(real.busy_percent, _MAX_INT16)
        if not (np.array_equal(used, old[0]) and np.array_equal(busy, old[1])):
            self._real_changed.add(slot)

    def _forget_real(self, slot: int) -> None:
        for column in _USAGE_COLUMNS:
            self._planes[column][slot] = UNKNOWN

    def _allocate_slot(self, name: str) -> int:
        if self._free_slots:
            slot = self._free_slots.pop()
        else:
            slot = len(self.nodes)
            self.nodes.append(None)
            if slot == len(self._planes["state"]):
                self._resize(2 * slot, self.stride)
        self._slots[name] = slot
        return slot

    def _widen(self, gpus: int) -> None:
        if gpus > self.stride:
            self._resize(len(self._planes["state"]), gpus)

    def _resize(self, slots: int, stride: int) -> None:
        for name, old in self._planes.items():
            plane = np.full((slots, stride), _empty(name), COLUMNS[name])
            plane[: old.shape[0], : old.shape[1]] = old
            self._planes[name] = plane
        self.stride = stride

    # --- encoding -------------------------------------------------------------------------------

    def snapshot(self, more: Mapping[str, object]) -> bytes:
        """The whole board: ``MAGIC``, the header's length, the header (JSON, with ``more``), and the columns, each padded to 8 bytes."""
        header = msgspec.json.encode(
            {**more, "stride": self.stride, "columns": list(COLUMNS.items()), "nodes": self.nodes}
        )
        parts = [MAGIC, struct.pack("<I", len(header)), header, _padding(len(header))]
        for name in COLUMNS:
            raw = self.plane(name).tobytes()
            parts += [raw, _padding(len(raw))]
        return b"".join(parts)

    def delta(self) -> dict[str, list[Any]]:
        """The changes since the last delta; empty without changes.

        ``nodes``: slot, node, and its figures column by column; ``gone``: slots; ``real``: slot, MiB, percent.
        """
        changed, self._changed = self._changed, set()
        real = self._real_changed - changed
        self._real_changed = set()
        message: dict[str, list[Any]] = {}
        nodes = [self._row(slot, node, COLUMNS) for slot in sorted(changed) if (node := self.nodes[slot])]
        if nodes:
            message["nodes"] = nodes
        if gone := [slot for slot in sorted(changed) if self.nodes[slot] is None]:
            message["gone"] = gone
        rows = [
            [slot, *self._figures(slot, node, _USAGE_COLUMNS)]
            for slot in sorted(real)
            if (node := self.nodes[slot])
        ]
        if rows:
            message["real"] = rows
        return message

    def _row(self, slot: int, node: BoardNode, columns: Iterable[str]) -> list[object]:
        return [slot, node, *self._figures(slot, node, columns)]

    def _figures(self, slot: int, node: BoardNode, columns: Iterable[str]) -> list[list[int]]:
        return [self._planes[name][slot, : node.gpus].tolist() for name in columns]


def in_parts(delta: Mapping[str, list[Any]]) -> Iterator[dict[str, object]]:
    """A delta in parts of at most ``MAX_ROWS`` rows; all but the last have ``more``. An empty delta is one part."""
    # Removed slots first: a new node may have the name of a removed one.
    rows = [(kind, row) for kind in ("gone", "nodes", "real") for row in delta.get(kind, ())]
    for start in range(0, max(len(rows), 1), MAX_ROWS):
        part: dict[str, list[Any]] = {}
        for kind, row in rows[start : start + MAX_ROWS]:
            part.setdefault(kind, []).append(row)
        yield {**part, "more": True} if start + MAX_ROWS < len(rows) else {**part}


def _empty(column: str) -> int:
    return UNKNOWN if column in _USAGE_COLUMNS else 0


def _padding(length: int) -> bytes:
    return bytes(-length % _ALIGNMENT)


def _models(devices: NodeDevices) -> str:
    return ", ".join(dict.fromkeys(device.model for device in devices.devices if device.model))
