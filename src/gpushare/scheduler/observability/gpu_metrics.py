"""What the ledger has allocated of every GPU, in Prometheus' text format: two lines for each, 80,000 for 40,000 GPUs.

The event loop only copies arrays and a list of nodes (``snapshot``); all else (``render``) is for another thread. There the
lines are one array of characters with a row for each, in which only the columns with the digits are written anew: their
beginnings change with the nodes, and are kept until then. A line's value stands at its right end, after as many
blanks as it takes: Prometheus' text format allows them.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gpushare.api.node.device import NodeDevices
from gpushare.ledger import Ledger
from gpushare.ledger.columns import Columns

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

_MIB: Final = 1 << 20
_DIGITS: Final = 15
_ZERO: Final = ord("0")
_BLANK: Final = ord(" ")


class Column(NamedTuple):
    """One metric. ``of`` picks its plane, (GPUs, nodes); that times ``factor`` over 10 to the ``decimals`` is its value."""

    name: str
    text: str
    of: Callable[[Columns], npt.NDArray[Any]]
    factor: int = 1
    decimals: int = 0


COLUMNS: Final = (
    Column(
        "gpushare_scheduler_gpu_memory_allocated_bytes",
        "Memory of the GPU that is allocated, by the ledger.",
        lambda columns: columns.used_mib,
        factor=_MIB,
    ),
    Column(
        "gpushare_scheduler_gpu_compute_allocated_ratio",
        "Part of the GPU's compute that is allocated, by the ledger, 0 to 1.",
        lambda columns: columns.used_core,
        decimals=2,
    ),
)
LABELS: Final = ("node", "gpu")


class Snapshot(NamedTuple):
    """The ledger's figures at one moment: nodes with their places in the planes, and a plane for each of ``COLUMNS``."""

    nodes: list[tuple[NodeDevices, int]]
    planes: list[npt.NDArray[Any]]


def snapshot(ledger: Ledger) -> Snapshot:
    """Copy what ``render`` needs; in the event loop, O(nodes)."""
    columns, places = ledger.columns_by_node()
    nodes = [(node, place) for name, place in places.items() if (node := ledger.node(name)) is not None]
    return Snapshot(nodes, [one.of(columns).copy() for one in COLUMNS])


class GpuTable:
    """Keeps the beginnings of lines. Not for two threads at once."""

    def __init__(self) -> None:
        self._heads: dict[str, tuple[NodeDevices, bytes]] = {}
        self._width = 0

    def render(self, taken: Snapshot) -> bytes:
        """The text of all of ``COLUMNS``; empty where there is no GPU."""
        counts = np.array([len(node.devices) for node, _ in taken.nodes], dtype=np.intp)
        gpus = int(counts.sum())
        if not gpus:
            return b""
        heads = self._heads_of([node for node, _ in taken.nodes]).reshape(gpus, self._width)
        places = np.repeat(np.array([place for _, place in taken.nodes], dtype=np.intp), counts)
        rows = np.arange(gpus) - np.repeat(np.cumsum(counts) - counts, counts)
        return b"".join(
            part
            for one, plane in zip(COLUMNS, taken.planes, strict=True)
            for part in _family(one, heads, plane[rows, places])
        )

    def _heads_of(self, nodes: list[NodeDevices]) -> Bytes:
        """The labels of every GPU, one after the other, each as long as the longest."""
        fresh = [node for node in nodes if self._is_new(node)]
        longest = max((len(_head(node.name, "000")) for node in fresh), default=0)
        if longest > self._width:
            self._width = longest
            self._heads.clear()
            fresh = nodes
        for node in fresh:
            text = "".join(_head(node.name, str(one.index)).ljust(self._width) for one in node.devices)
            self._heads[node.name] = (node, text.encode())
        if len(self._heads) > len(nodes):
            names = {node.name for node in nodes}
            self._heads = {name: head for name, head in self._heads.items() if name in names}
        return np.frombuffer(b"".join([self._heads[node.name][1] for node in nodes]), np.uint8)

    def _is_new(self, node: NodeDevices) -> bool:
        kept = self._heads.get(node.name)
        if kept is None:
            return True
        if kept[0] is node:
            return False
        same = [one.index for one in kept[0].devices] == [one.index for one in node.devices]
        if same:
            self._heads[node.name] = (node, kept[1])
        return not same


def _head(node: str, gpu: str) -> str:
    # Names of nodes are DNS labels, and need no escapes.
    return f'{{node="{node}",gpu="{gpu}"}}'


def _family(one: Column, heads: Bytes, values: npt.NDArray[Any]) -> Iterator[bytes]:
    yield f"# HELP {one.name} {one.text}\n# TYPE {one.name} gauge\n".encode()
    name = np.frombuffer(one.name.encode(), np.uint8)
    begins, ends = len(name), len(name) + heads.shape[1]
    digits = written(values.astype(np.int64) * one.factor, one.decimals)
    lines = np.empty((len(heads), ends + digits.shape[1] + 1), np.uint8)
    lines[:, :begins] = name
    lines[:, begins:ends] = heads
    lines[:, ends:-1] = digits
    lines[:, -1] = ord("\n")
    yield lines.tobytes()


def written(values: Ints, decimals: int) -> Bytes:
    """Whole numbers from 0 as decimal digits, (numbers, characters), right-aligned after a blank; ``decimals`` of them after
    a point. What is below 0 counts as 0, what has more than 15 digits as the most that 15 can say."""
    values = np.clip(values, 0, 10**_DIGITS - 1)
    width = 1 + _DIGITS + bool(decimals)
    out = np.full((len(values), width), _BLANK, np.uint8)
    at = width - 1
    for power in range(_DIGITS):
        if decimals and power == decimals:
            out[:, at] = ord(".")
            at -= 1
        digit = (values // 10**power % 10 + _ZERO).astype(np.uint8)
        out[:, at] = digit if power <= decimals else np.where(values >= 10**power, digit, _BLANK)
        at -= 1
    return out
