"""The heat map's figures: a row of GPUs for each node, as arrays that are sent as they are.

A node has a slot, a small number that stays its own as long as it is known; slots that come free are given again. What
has changed since the last delta is noted slot by slot, so a change costs what the node costs, whatever the size
of the cluster. Figures that nobody knows are ``UNKNOWN``, never 0; so is the compute that is given where none is counted.
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
_ALIGNED: Final = 8
_MOST_SMALL: Final = 32767
_FIRST_SLOTS: Final = 16
#: Of a delta that are sent together: a page takes them in a millisecond or two, and does something else before the next.
MOST_ROWS: Final = 128

#: Column → element type: what a page finds behind the header, in this order.
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
#: Those that the ledger tells; the others come from the node agents.
_GIVEN: Final = ("total_mib", "allocated_mib", "foreign_mib", "allocated_core", "pods", "state")
_REAL: Final = ("used_mib", "busy_percent")


class State(IntEnum):
    """What can be done with a GPU."""

    ABSENT = 0
    IN_SERVICE = 1
    UNHEALTHY = 2
    CORDONED = 3
    CLOSED = 4
    """The node takes nothing new at present, or the GPU waits for pods from before a change of mode."""


class Real(NamedTuple):
    """What processes really use of a GPU: MiB, and percent of its time; ``UNKNOWN`` where nobody says."""

    used_mib: int = UNKNOWN
    busy_percent: int = UNKNOWN


class BoardNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is sent of a node beside the figures of its GPUs; ``indices`` of these where they are not 0, 1, 2 and so on."""

    name: str
    mode: str
    unit_mib: int
    model: str
    refusal: str
    gpus: int
    indices: tuple[int, ...] = ()


class Board:
    """The arrays, and what of them has changed."""

    def __init__(self) -> None:
        self.stride = 1
        self.nodes: list[BoardNode | None] = []
        self._slots: dict[str, int] = {}
        self._returned: list[int] = []
        self._changed: set[int] = set()
        self._real_changed: set[int] = set()
        self._planes = {
            name: np.full((_FIRST_SLOTS, 1), _empty(name), kind) for name, kind in COLUMNS.items()
        }

    def slot(self, name: str) -> int | None:
        """The slot of a node that is known."""
        return self._slots.get(name)

    def plane(self, name: str) -> npt.NDArray[Any]:
        """(slots in use, GPUs) of a column of ``COLUMNS``, for reading."""
        return self._planes[name][: len(self.nodes)]

    @property
    def gpus(self) -> int:
        """How many GPUs are shown."""
        return int(np.count_nonzero(self.plane("state")))

    # --- changes --------------------------------------------------------------------------------

    def put(self, devices: NodeDevices, usage: NodeUsage) -> None:
        """Show the node so; what is really used of it stays as long as it has as many GPUs."""
        indices = tuple(device.index for device in devices.devices)
        shown = BoardNode(
            devices.name,
            devices.mode.value,
            devices.unit.mib,
            _models(devices),
            devices.refusal,
            len(usage.gpus),
            () if indices == tuple(range(len(indices))) else indices,
        )
        slot = self._slots.get(devices.name)
        if slot is None:
            slot = self._take(devices.name)
        self._widen(len(usage.gpus))
        before = self.nodes[slot]
        rows = [self._planes[name][slot] for name in _GIVEN]
        old = [row.copy() for row in rows]
        closed = bool(devices.refusal) or not devices.mode.resources
        for row in rows:
            row[:] = 0
        for at, (gpu, device) in enumerate(zip(usage.gpus, devices.devices, strict=True)):
            if device.ails:
                state = State.UNHEALTHY
            elif device.cordoned:
                state = State.CORDONED
            else:
                state = State.CLOSED if closed or device.kept_back else State.IN_SERVICE
            # Where compute is not counted, 0 would say that all of it is free.
            core = gpu.used_core if devices.mode.gives_core else UNKNOWN
            figures = (gpu.total_mib, gpu.used_mib, gpu.foreign_mib, core, len(gpu.pods), state)
            for row, figure in zip(rows, figures, strict=True):
                row[at] = min(figure, np.iinfo(row.dtype).max)
        if before is not None and before.gpus != shown.gpus:
            self._forget_real(slot)
        self.nodes[slot] = shown
        if before != shown or any(not np.array_equal(row, was) for row, was in zip(rows, old, strict=True)):
            self._changed.add(slot)

    def remove(self, name: str) -> None:
        """Show the node no more."""
        slot = self._slots.pop(name, None)
        if slot is None:
            return
        self.nodes[slot] = None
        for column, plane in self._planes.items():
            plane[slot] = _empty(column)
        self._returned.append(slot)
        self._changed.add(slot)

    def put_real(self, name: str, figures: Sequence[Real]) -> None:
        """What is really used of the node's GPUs, in the order in which they are shown; none where nobody knows."""
        slot = self._slots.get(name)
        if slot is None:
            return
        used, busy = (self._planes[column][slot] for column in _REAL)
        old = used.copy(), busy.copy()
        self._forget_real(slot)
        for at, real in enumerate(figures[: self.stride]):
            used[at], busy[at] = real.used_mib, min(real.busy_percent, _MOST_SMALL)
        if not (np.array_equal(used, old[0]) and np.array_equal(busy, old[1])):
            self._real_changed.add(slot)

    def _forget_real(self, slot: int) -> None:
        for column in _REAL:
            self._planes[column][slot] = UNKNOWN

    def _take(self, name: str) -> int:
        if self._returned:
            slot = self._returned.pop()
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

    # --- what is sent ---------------------------------------------------------------------------

    def snapshot(self, more: Mapping[str, object]) -> bytes:
        """All of it: ``MAGIC``, the header's length, the header (JSON, with ``more``), and the columns, each padded to 8 bytes."""
        header = msgspec.json.encode(
            {**more, "stride": self.stride, "columns": list(COLUMNS.items()), "nodes": self.nodes}
        )
        parts = [MAGIC, struct.pack("<I", len(header)), header, _padding(len(header))]
        for name in COLUMNS:
            raw = self.plane(name).tobytes()
            parts += [raw, _padding(len(raw))]
        return b"".join(parts)

    def delta(self) -> dict[str, list[Any]]:
        """What has changed since the last one, and forget it; empty when nothing has.

        ``nodes``: slot, node, and its figures column by column; ``gone``: slots; ``real``: slot, MiB, percent.
        """
        changed, self._changed = self._changed, set()
        real = self._real_changed - changed
        self._real_changed = set()
        found: dict[str, list[Any]] = {}
        nodes = [self._row(slot, node, COLUMNS) for slot in sorted(changed) if (node := self.nodes[slot])]
        if nodes:
            found["nodes"] = nodes
        if gone := [slot for slot in sorted(changed) if self.nodes[slot] is None]:
            found["gone"] = gone
        rows = [
            [slot, *self._figures(slot, node, _REAL)] for slot in sorted(real) if (node := self.nodes[slot])
        ]
        if rows:
            found["real"] = rows
        return found

    def _row(self, slot: int, node: BoardNode, columns: Iterable[str]) -> list[object]:
        return [slot, node, *self._figures(slot, node, columns)]

    def _figures(self, slot: int, node: BoardNode, columns: Iterable[str]) -> list[list[int]]:
        return [self._planes[name][slot, : node.gpus].tolist() for name in columns]


def in_parts(delta: Mapping[str, list[Any]]) -> Iterator[dict[str, object]]:
    """A delta in parts of at most ``MOST_ROWS`` rows; all but the last say that there is ``more``. One that says nothing is one part."""
    # What is gone first: its name may be that of a node that has come.
    rows = [(kind, row) for kind in ("gone", "nodes", "real") for row in delta.get(kind, ())]
    for at in range(0, max(len(rows), 1), MOST_ROWS):
        part: dict[str, list[Any]] = {}
        for kind, row in rows[at : at + MOST_ROWS]:
            part.setdefault(kind, []).append(row)
        yield {**part, "more": True} if at + MOST_ROWS < len(rows) else {**part}


def _empty(column: str) -> int:
    return UNKNOWN if column in _REAL else 0


def _padding(length: int) -> bytes:
    return bytes(-length % _ALIGNED)


def _models(devices: NodeDevices) -> str:
    return ", ".join(dict.fromkeys(device.model for device in devices.devices if device.model))
