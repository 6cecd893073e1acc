"""The allocations of every GPU in Prometheus' text format: two lines per GPU, 80,000 lines for 40,000 GPUs.

The event loop only copies arrays and a list of nodes (``snapshot``); everything else (``render``) runs in another thread. It builds one
array of characters with a row per line. Only the digits are written at each scrape: names and labels change only with the nodes, and
are cached. Values are right-aligned and padded with blanks, which Prometheus' text format allows.
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
    """One metric. ``of`` selects its plane, an array (GPUs, nodes); the value is that times ``factor`` divided by 10 to the ``decimals``."""

    name: str
    text: str
    of: Callable[[Columns], npt.NDArray[Any]]
    factor: int = 1
    decimals: int = 0


COLUMNS: Final = (
    Column(
        "gpushare_scheduler_gpu_memory_allocated_bytes",
        "Memory of the GPU that is allocated, by the ledger, which has no ResourceClaims.",
        lambda columns: columns.used_mib,
        factor=_MIB,
    ),
    Column(
        "gpushare_scheduler_gpu_compute_allocated_ratio",
        "Part of the GPU's compute that is allocated, by the ledger, which has no ResourceClaims, 0 to 1.",
        lambda columns: columns.used_core,
        decimals=2,
    ),
)
LABELS: Final = ("node", "gpu")


class Snapshot(NamedTuple):
    """A copy of the ledger's figures: nodes with their positions in the planes, and a plane for each of ``COLUMNS``."""

    nodes: list[tuple[NodeDevices, int]]
    planes: list[npt.NDArray[Any]]


def snapshot(ledger: Ledger) -> Snapshot:
    """Copy the data for ``render``. Runs in the event loop in O(nodes)."""
    columns, places = ledger.columns_by_node()
    nodes = [(node, place) for name, place in places.items() if (node := ledger.node(name)) is not None]
    return Snapshot(nodes, [column.of(columns).copy() for column in COLUMNS])


class GpuTable:
    """Renders the metrics and caches the labels of lines. Not thread-safe."""

    def __init__(self) -> None:
        self._heads: dict[str, tuple[NodeDevices, bytes]] = {}
        self._width = 0

    def render(self, figures: Snapshot) -> bytes:
        """The text of all ``COLUMNS``; empty if there is no GPU."""
        counts = np.array([len(node.devices) for node, _ in figures.nodes], dtype=np.intp)
        gpus = int(counts.sum())
        if not gpus:
            return b""
        heads = self._heads_of([node for node, _ in figures.nodes]).reshape(gpus, self._width)
        places = np.repeat(np.array([place for _, place in figures.nodes], dtype=np.intp), counts)
        rows = np.arange(gpus) - np.repeat(np.cumsum(counts) - counts, counts)
        return b"".join(
            part
            for column, plane in zip(COLUMNS, figures.planes, strict=True)
            for part in _family(column, heads, plane[rows, places])
        )

    def _heads_of(self, nodes: list[NodeDevices]) -> Bytes:
        """The labels of every GPU, concatenated, each padded to the longest."""
        new_nodes = [node for node in nodes if self._is_new(node)]
        longest = max((len(_head(node.name, "00/0")) for node in new_nodes), default=0)
        if longest > self._width:
            self._width = longest
            self._heads.clear()
            new_nodes = nodes
        for node in new_nodes:
            text = "".join(_head(node.name, one.label).ljust(self._width) for one in node.devices)
            self._heads[node.name] = (node, text.encode())
        if len(self._heads) > len(nodes):
            names = {node.name for node in nodes}
            self._heads = {name: head for name, head in self._heads.items() if name in names}
        return np.frombuffer(b"".join([self._heads[node.name][1] for node in nodes]), np.uint8)

    def _is_new(self, node: NodeDevices) -> bool:
        cached = self._heads.get(node.name)
        if cached is None:
            return True
        if cached[0] is node:
            return False
        same = [one.label for one in cached[0].devices] == [one.label for one in node.devices]
        if same:
            self._heads[node.name] = (node, cached[1])
        return not same


def _head(node: str, gpu: str) -> str:
    # Names of nodes are DNS subdomains and need no escapes.
    return f'{{node="{node}",gpu="{gpu}"}}'


def _family(column: Column, heads: Bytes, values: npt.NDArray[Any]) -> Iterator[bytes]:
    yield f"# HELP {column.name} {column.text}\n# TYPE {column.name} gauge\n".encode()
    name = np.frombuffer(column.name.encode(), np.uint8)
    begins, ends = len(name), len(name) + heads.shape[1]
    digits = written(values.astype(np.int64) * column.factor, column.decimals)
    lines = np.empty((len(heads), ends + digits.shape[1] + 1), np.uint8)
    lines[:, :begins] = name
    lines[:, begins:ends] = heads
    lines[:, ends:-1] = digits
    lines[:, -1] = ord("\n")
    yield lines.tobytes()


def written(values: Ints, decimals: int) -> Bytes:
    """Integers as right-aligned decimal digits after a blank, as an array (numbers, characters), ``decimals`` of the digits after a point.

    A negative number is written as 0, one with more than 15 digits as the largest number with 15.
    """
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
