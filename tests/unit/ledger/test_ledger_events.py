"""Nodes and pods are added, changed and removed in any order, and usage stays correct."""

from gpushare.api.allocation.allocation import Allocation, GpuShare
from gpushare.api.node.device import NodeDevices
from gpushare.api.node.modes import NodeMode
from gpushare.api.quantity import MemoryUnit
from gpushare.ledger import Held, Ledger, Totals
from tests.unit.ledger.ledger_samples import T4, V100, asks, gpus, holding, node, share


def used(ledger: Ledger, name: str = "n1") -> list[tuple[int, int]]:
    """(MiB, units) used of each GPU."""
    return [(gpu.used_mib, gpu.used_units) for gpu in ledger.usage(name).gpus]


def test_a_reservation_is_confirmed_without_counting_twice() -> None:
    ledger = Ledger()
    ledger.set_node(node("n1", T4))
    allocation = ledger.reserve("a", "default/a", asks(3), "n1")
    ledger.hold("a", "default/a", "n1", allocation)
    ledger.hold("a", "default/a", "n1", allocation)
    assert used(ledger) == [(3072, 3)]
    assert ledger.held("a") == Held("a", "default/a", "n1", allocation, confirmed=True)
    assert ledger.totals() == Totals(1, 1, T4, 3072, 0, 1, 0, 0)


def test_a_gpu_may_change_its_index_under_its_pods() -> None:
    ledger = Ledger()
    first, second = gpus("n1", T4, V100)
    ledger.set_node(node("n1", T4, V100))
    ledger.hold("a", "default/a", "n1", holding(share(second.uuid, 2154, 2)))
    moved = (
        type(second)(0, second.uuid, second.total_mib),
        type(first)(1, first.uuid, first.total_mib),
    )
    ledger.set_node(NodeDevices("n1", NodeMode.CGPU, MemoryUnit.GIB, moved))
    assert [(gpu.uuid, gpu.used_mib) for gpu in ledger.usage("n1").gpus] == [
        (second.uuid, 2154),
        (first.uuid, 0),
    ]


def test_a_record_that_names_a_gpu_twice_counts_both_and_leaves_nothing_behind() -> None:
    ledger = Ledger()
    ledger.set_node(node("n1", T4))
    for uuid in ("n1-gpu0", "GPU-of-old"):
        ledger.hold("a", "default/a", "n1", holding(share(uuid, 1024), share(uuid, 2048, 2)))
        assert ledger.held("a") is not None
        ledger.release("a")
        assert ledger.usage("n1") == ledger_with(node("n1", T4)).usage("n1")
    ledger.hold("a", "default/a", "n1", holding(share("n1-gpu0", 1024), share("n1-gpu0", 2048, 2)))
    assert used(ledger) == [(3072, 3)]
    assert ledger.usage("n1").gpus[0].pods == ("a",)


def ledger_with(*nodes: NodeDevices) -> Ledger:
    ledger = Ledger()
    for one in nodes:
        ledger.set_node(one)
    return ledger


def test_the_unit_changes_to_128_mib_and_back_with_pods_coming_and_going() -> None:
    ledger = Ledger()
    gib = node("n1", V100, T4)
    fine = node("n1", V100, T4, unit=MemoryUnit.MIB_128)
    ledger.set_node(gib)
    old = ledger.reserve("old", "default/old", asks(2), "n1")
    assert (old.gpus[0].index, old.mib) == (1, 2048)
    big = ledger.reserve("big", "default/big", asks(14), "n1")
    assert (big.gpus[0].index, big.mib) == (0, 15082)
    ledger.hold("old", "default/old", "n1", old)

    ledger.set_node(fine)
    ledger.hold("big", "default/big", "n1", big)
    # 15082 of 16160 MiB are 117.6 of 126 units; 2048 of 15360 MiB are 16 of 120.
    assert used(ledger) == [(15082, 118), (2048, 16)]
    assert ledger.filter(asks(9), ["n1"]).fits == ["n1"]
    small = ledger.reserve("small", "default/small", asks(8), "n1")
    assert (small.gpus[0].index, small.mib, small.unit) == (0, 1026, MemoryUnit.MIB_128)
    assert used(ledger) == [(16108, 126), (2048, 16)]
    assert ledger.filter(asks(105), ["n1"]).refused == {
        "n1": "no single GPU has 13440 MiB free (largest free: 13 GiB on GPU 1)"
    }
    assert ledger.release("old")
    ledger.reserve("odd", "default/odd", asks(1), "n1")
    assert used(ledger) == [(16108, 126), (128, 1)]

    ledger.set_node(gib)
    # 128 MiB of a foreign unit take a unit of 1 GiB; 14 units and 1026 MiB are all 15 of GPU 0.
    assert used(ledger) == [(16108, 15), (128, 1)]
    assert ledger.filter(asks(15), ["n1"]).fits == []
    assert ledger.filter(asks(14), ["n1"]).fits == ["n1"]
    for uid in ("small", "odd"):
        assert ledger.release(uid)
    assert used(ledger) == [(15082, 14), (0, 0)]
    assert ledger.filter(asks(15), ["n1"]).fits == ["n1"]
    assert ledger.release("big")
    assert used(ledger) == [(0, 0), (0, 0)]
    assert ledger.usage("n1") == ledger_with(gib).usage("n1")


def test_a_record_of_another_scheduler_counts_in_units_where_they_are_the_nodes() -> None:
    ledger = Ledger()
    ledger.set_node(node("n1", V100, V100))
    ledger.hold("a", "default/a", "n1", holding(share("n1-gpu0", 2154, 2, of=15), unit=None))
    ledger.hold("b", "default/b", "n1", holding(share("n1-gpu1", 2154, 3, of=20), unit=None))
    assert used(ledger) == [(2154, 2), (2154, 2)]


def test_an_empty_record_is_stored_and_takes_nothing() -> None:
    ledger = Ledger()
    ledger.set_node(node("n1", T4))
    nothing = Allocation((), {}, None)
    ledger.hold("a", "default/a", "n1", nothing)
    assert ledger.held("a") == Held("a", "default/a", "n1", nothing, confirmed=True)
    assert used(ledger) == [(0, 0)]
    assert ledger.release("a")


def test_a_share_is_still_worth_its_recorded_mib_after_its_gpu_has_grown() -> None:
    ledger = Ledger()
    ledger.set_node(node("n1", 8 * 1024))
    ledger.hold("a", "default/a", "n1", holding(GpuShare("n1-gpu0", 0, 4096, 4, 8)))
    ledger.set_node(node("n1", 16 * 1024))
    assert used(ledger) == [(4096, 4)]
    assert ledger.filter(asks(12), ["n1"]).fits == ["n1"]


def test_rounding_never_shows_more_units_than_a_gpu_has() -> None:
    ledger = Ledger()
    ledger.set_node(node("n1", V100))
    ledger.hold("a", "default/a", "n1", holding(share("n1-gpu0", 15082, 14, of=15)))
    ledger.hold("b", "default/b", "n1", holding(share("n1-gpu0", 1078, 8, of=126)))
    assert used(ledger) == [(V100, 15)]
    ledger.hold("c", "default/c", "n1", holding(share("n1-gpu0", 1, 1, of=126)))
    assert used(ledger) == [(V100 + 1, 16)]
