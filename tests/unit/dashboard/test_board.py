"""The board: slots, columns, what changed, and what a page makes of snapshot and deltas."""

import json
import struct
from typing import Any

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpushare.api.node.device import Device, NodeDevices
from gpushare.api.node.modes import MODES, NodeMode
from gpushare.api.quantity import MemoryUnit
from gpushare.dashboard.data.heatmap import COLUMNS, MAGIC, UNKNOWN, Board, Real, State
from gpushare.ledger import Ledger
from tests.unit.dashboard.live_pages import Shown, described, gpu, holder, share

SeenByNode = dict[str, dict[str, list[int]]]


def read_snapshot(raw: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    """As a page reads it."""
    assert raw[:4] == MAGIC
    (length,) = struct.unpack("<I", raw[4:8])
    header = json.loads(raw[8 : 8 + length])
    at = (8 + length + 7) // 8 * 8
    columns = {}
    for name, kind in header["columns"]:
        dtype = np.dtype(kind)
        cells = len(header["nodes"]) * header["stride"]
        columns[name] = np.frombuffer(raw, dtype, cells, at).reshape(-1, header["stride"])
        at = (at + cells * dtype.itemsize + 7) // 8 * 8
    assert at == len(raw)
    return header, columns


class Page:
    """The state of a page: a snapshot, then deltas."""

    def __init__(self, raw: bytes) -> None:
        header, columns = read_snapshot(raw)
        self.nodes: dict[int, Any] = {slot: node for slot, node in enumerate(header["nodes"]) if node}
        self.figures = {
            slot: [columns[name][slot, : node["gpus"]].tolist() for name in COLUMNS]
            for slot, node in self.nodes.items()
        }

    def apply(self, delta: dict[str, Any]) -> None:
        change = json.loads(msgspec.json.encode(delta))
        for slot in change.get("gone", ()):
            self.nodes.pop(slot, None)
            self.figures.pop(slot, None)
        for slot, node, *figures in change.get("nodes", ()):
            self.nodes[slot], self.figures[slot] = node, figures
        names = list(COLUMNS)
        for slot, used, busy in change.get("real", ()):
            self.figures[slot][names.index("used_mib")] = used
            self.figures[slot][names.index("busy_percent")] = busy

    def seen(self) -> SeenByNode:
        return {
            node["name"]: dict(zip(COLUMNS, self.figures[slot], strict=True))
            for slot, node in self.nodes.items()
        }


async def test_a_snapshot_shows_memory_allocations_and_state_of_each_gpu() -> None:
    shown = Shown()
    shown.add(
        described(
            "a",
            gpu("a", 0),
            gpu("a", 1, healthy=False),
            gpu("a", 2, cordoned=True, foreign_mib=100),
            gpu("a", 3, healthy=False, kept_back=True, reason="held whole by pod a/b until it ends"),
            mode=NodeMode.CORE_MEM,
        ),
        holder("one", "a", share("a", 0, 3, 30)),
        holder("two", "a", share("a", 0, 1, 10)),
    )
    await shown.cluster.refresh()
    seen = Page(shown.cluster.board.snapshot({"id": "e-0"})).seen()
    assert seen == {
        "a": {
            "total_mib": [16384] * 4,
            "allocated_mib": [4096, 0, 0, 0],
            "used_mib": [UNKNOWN] * 4,
            "foreign_mib": [0, 0, 100, 0],
            "allocated_core": [40, 0, 0, 0],
            "busy_percent": [UNKNOWN] * 4,
            "pods": [2, 0, 0, 0],
            "state": [State.IN_SERVICE, State.UNHEALTHY, State.CORDONED, State.CLOSED],
        }
    }
    assert shown.cluster.board.gpus == 4


async def test_a_node_that_takes_nothing_new_is_closed() -> None:
    shown = Shown()
    shown.add(
        described("a", gpu("a", 0), refusal="its agent is away"),
        described("b", gpu("b", 0), mode=NodeMode.DEFAULT),
        described("c", gpu("c", 0), mode=NodeMode.TOPOLOGY),
    )
    await shown.cluster.refresh()
    seen = Page(shown.cluster.board.snapshot({})).seen()
    assert {name: one["state"] for name, one in seen.items()} == {
        "a": [State.CLOSED],
        "b": [State.CLOSED],
        "c": [State.IN_SERVICE],
    }


async def test_compute_is_unknown_where_it_is_not_counted() -> None:
    shown = Shown()
    shown.add(
        described("a", gpu("a", 0), mode=NodeMode.CORE_MEM),
        *(
            described(mode.value, gpu(mode.value, 0), mode=mode)
            for mode in MODES.values()
            if not mode.limits_compute
        ),
    )
    await shown.cluster.refresh()
    seen = Page(shown.cluster.board.snapshot({})).seen()
    assert seen.pop("a")["allocated_core"] == [0]
    assert {name: one["allocated_core"] for name, one in seen.items()} == {name: [UNKNOWN] for name in seen}


async def test_only_changes_are_sent_and_only_once() -> None:
    shown = Shown()
    shown.add(described("a", gpu("a", 0)), described("b", gpu("b", 0)))
    await shown.cluster.refresh()
    shown.cluster.board.delta()
    pod = holder("one", "b", share("b", 0, 2))
    shown.add(pod)
    await shown.cluster.refresh()
    delta = shown.cluster.board.delta()
    assert [row[1].name for row in delta["nodes"]] == ["b"]  # type: ignore[attr-defined]
    assert shown.cluster.board.delta() == {}
    shown.add(pod)
    shown.add(described("a", gpu("a", 0)))
    await shown.cluster.refresh()
    assert shown.cluster.board.delta() == {}


async def test_the_slot_of_a_removed_node_is_used_for_the_next() -> None:
    shown = Shown()
    gone = described("a", gpu("a", 0), gpu("a", 1))
    shown.add(gone, described("b", gpu("b", 0)))
    await shown.cluster.refresh()
    board = shown.cluster.board
    board.put_real("a", [Real(5, 6)])
    board.delta()
    slot = board.slot("a")
    shown.remove(gone)
    await shown.cluster.refresh()
    assert board.delta() == {"gone": [slot]}
    shown.add(described("c", gpu("c", 0)))
    await shown.cluster.refresh()
    assert board.slot("c") == slot
    assert Page(board.snapshot({})).seen()["c"]["used_mib"] == [UNKNOWN]
    board.remove("never there")
    board.put_real("never there", [Real(1, 1)])
    assert "real" not in board.delta()


async def test_use_is_sent_separately_and_becomes_unknown_again() -> None:
    shown = Shown()
    shown.add(described("a", gpu("a", 0), gpu("a", 1)))
    await shown.cluster.refresh()
    board = shown.cluster.board
    board.delta()
    board.put_real("a", [Real(100, 7), Real()])
    assert board.delta() == {"real": [[0, [100, UNKNOWN], [7, UNKNOWN]]]}
    board.put_real("a", [Real(100, 7), Real()])
    assert board.delta() == {}
    board.put_real("a", [])
    assert board.delta() == {"real": [[0, [UNKNOWN] * 2, [UNKNOWN] * 2]]}
    board.put_real("a", [Real(1, 1)])
    shown.add(described("a", gpu("a", 0)))
    await shown.cluster.refresh()
    assert Page(board.snapshot({})).seen()["a"]["used_mib"] == [UNKNOWN]


def test_labels_are_sent_where_there_are_mig_instances() -> None:
    board, ledger = Board(), Ledger()
    devices = described("a", gpu("a", 1), Device(20, "MIG-a", 40192)).devices
    assert devices is not None
    ledger.set_node(devices)
    board.put(devices, ledger.usage("a"))
    (node,) = board.nodes
    assert node is not None
    assert (node.indices, node.labels) == ((1, 20), ("1", "0/4"))


async def test_gpu_indices_are_sent_where_they_are_not_consecutive() -> None:
    shown = Shown()
    shown.add(described("a", gpu("a", 0), gpu("a", 2)))
    await shown.cluster.refresh()
    [node] = [one for one in shown.cluster.board.nodes if one is not None]
    assert node.indices == (0, 2)


_CHANGES = st.lists(
    st.tuples(
        st.sampled_from("abcdef"),
        st.one_of(st.none(), st.integers(1, 5)),
        st.integers(0, 40000),
        st.booleans(),
    ),
    max_size=40,
)


@given(_CHANGES, st.integers(0, 40))
def test_a_page_that_follows_deltas_sees_what_a_new_page_sees(
    changes: list[tuple[str, int | None, int, bool]], joined_after: int
) -> None:
    board, ledger = Board(), Ledger()
    page: Page | None = None
    for at, (name, gpus, figure, real) in enumerate(changes):
        if at == joined_after:
            page = Page(board.snapshot({}))
        if gpus is None:
            ledger.remove_node(name)
            board.remove(name)
        elif real:
            board.put_real(name, [Real(figure, figure)] * gpus)
        else:
            devices = tuple(Device(index, f"GPU-{name}-{index}", 1024 + figure) for index in range(gpus))
            node = NodeDevices(name, NodeMode.SHARE, MemoryUnit.GIB, devices)
            ledger.set_node(node)
            board.put(node, ledger.usage(name))
        if page is not None and at % 3 == 0:
            page.apply(board.delta())
    if page is not None:
        page.apply(board.delta())
        assert page.seen() == Page(board.snapshot({})).seen()
