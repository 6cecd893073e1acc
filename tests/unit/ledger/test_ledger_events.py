"""Nodes and pods come, change and go in any order; the figures stay right."""

from itertools import permutations

from gpushare.api.allocation.allocation import Allocation, GpuShare
from gpushare.api.node.device import NodeDevices, Placement
from gpushare.api.node.modes import NodeMode
from gpushare.api.quantity import MemoryUnit
from gpushare.ledger import Held, Ledger, PendingShare, Totals
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


def test_release_frees_at_once_and_only_once() -> None:
    ledger = Ledger()
    ledger.set_node(node("n1", T4))
    ledger.reserve("a", "default/a", asks(15), "n1")
    assert ledger.release("a") is True
    assert ledger.release("a") is False
    assert ledger.held("a") is None
    assert ledger.reserve("b", "default/b", asks(15), "n1").gpus[0].index == 0


def test_what_was_really_given_replaces_what_was_decided() -> None:
    ledger = Ledger()
    ledger.set_node(node("n1", T4, T4))
    ledger.reserve("a", "default/a", asks(3), "n1")
    given = holding(share("n1-gpu1", 3072, 3, index=1))
    ledger.hold("a", "default/a", "n1", given)
    assert used(ledger) == [(0, 0), (3072, 3)]


def test_a_pod_held_elsewhere_moves() -> None:
    ledger = Ledger()
    ledger.set_node(node("n1", T4))
    ledger.set_node(node("n2", T4))
    ledger.reserve("a", "default/a", asks(3), "n1")
    ledger.hold("a", "default/a", "n2", holding(share("n2-gpu0", 4096, 4)))
    assert used(ledger, "n1") == [(0, 0)]
    assert used(ledger, "n2") == [(4096, 4)]
    assert ledger.totals().reserved == 0


def test_a_pod_seen_before_its_node_counts_as_soon_as_the_node_comes() -> None:
    ledger = Ledger()
    one = share("n1-gpu0", 4096, 4)
    ledger.hold("a", "default/a", "n1", holding(one))
    assert ledger.node("n1") is None
    assert ledger.usage("n1").gpus == ()
    assert ledger.usage("n1").pending == (PendingShare("a", one),)
    assert ledger.totals() == Totals(0, 0, 0, 0, 0, 1, 0, 1)
    ledger.set_node(node("n1", T4))
    assert used(ledger) == [(4096, 4)]
    assert ledger.usage("n1").pending == ()
    assert ledger.totals().pending == 0


def test_a_node_that_goes_and_returns_has_its_pods_again() -> None:
    ledger = Ledger()
    ledger.set_node(node("n1", T4, T4))
    ledger.reserve("a", "default/a", asks(3), "n1")
    ledger.reserve("b", "default/b", asks(13), "n1")
    before = ledger.usage("n1")
    ledger.remove_node("n1")
    ledger.remove_node("n1")
    assert ledger.filter(asks(1), ["n1"]).fits == []
    assert {one.uid for one in ledger.usage("n1").pending} == {"a", "b"}
    ledger.set_node(node("n1", T4, T4))
    assert ledger.usage("n1") == before


def test_a_pod_that_ends_while_its_node_is_away_is_gone_when_it_returns() -> None:
    ledger = Ledger()
    ledger.set_node(node("n1", T4))
    ledger.reserve("a", "default/a", asks(3), "n1")
    ledger.remove_node("n1")
    ledger.release("a")
    assert ledger.usage("n1").pending == ()
    ledger.set_node(node("n1", T4))
    assert used(ledger) == [(0, 0)]


def test_a_gpu_that_is_lost_and_comes_back_has_its_pods_again() -> None:
    ledger = Ledger()
    whole = node("n1", T4, T4)
    half = NodeDevices("n1", whole.mode, whole.unit, whole.devices[1:])
    ledger.set_node(whole)
    ledger.reserve("a", "default/a", asks(14), "n1")
    ledger.set_node(half)
    assert [one.uid for one in ledger.usage("n1").pending] == ["a"]
    assert [(gpu.index, gpu.used_mib) for gpu in ledger.usage("n1").gpus] == [(1, 0)]
    assert ledger.filter(asks(8), ["n1"]).fits == ["n1"]
    ledger.set_node(whole)
    assert used(ledger) == [(14 * 1024, 14), (0, 0)]


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


def test_an_unhealthy_gpu_keeps_what_is_held_and_takes_nothing_new() -> None:
    ledger = Ledger()
    ledger.set_node(node("n1", T4, T4))
    ledger.reserve("a", "default/a", asks(3), "n1")
    ledger.set_node(node("n1", T4, T4, sick={0: "XID 79"}))
    assert used(ledger) == [(3072, 3), (0, 0)]
    assert not ledger.usage("n1").gpus[0].healthy
    assert ledger.reserve("b", "default/b", asks(3), "n1").gpus[0].index == 1
    ledger.release("a")
    ledger.set_node(node("n1", T4, T4))
    assert ledger.reserve("c", "default/c", asks(15), "n1").gpus[0].index == 0


def test_what_others_gave_away_beyond_capacity_is_recorded_and_free_is_never_negative() -> None:
    ledger = Ledger()
    ledger.set_node(node("n1", T4))
    ledger.hold("a", "default/a", "n1", holding(share("n1-gpu0", 12 * 1024, 12)))
    ledger.hold("b", "default/b", "n1", holding(share("n1-gpu0", 8 * 1024, 8)))
    gpu = ledger.usage("n1").gpus[0]
    assert (gpu.used_mib, gpu.used_units, gpu.free_mib) == (20 * 1024, 20, 0)
    assert ledger.filter(asks(1), ["n1"]).refused == {
        "n1": "no single GPU has 1 GiB free (every GPU is full)"
    }
    ledger.release("a")
    assert ledger.usage("n1").gpus[0].free_mib == 7 * 1024
    assert ledger.filter(asks(7), ["n1"]).fits == ["n1"]
    assert ledger.filter(asks(8), ["n1"]).fits == []


def test_a_pod_on_a_gpu_that_the_node_never_had_is_kept_apart() -> None:
    ledger = Ledger()
    ledger.set_node(node("n1", T4))
    there, elsewhere = share("n1-gpu0", 1024), share("GPU-of-old", 2048)
    ledger.hold("a", "default/a", "n1", holding(there, elsewhere))
    assert used(ledger) == [(1024, 1)]
    assert ledger.usage("n1").pending == (PendingShare("a", elsewhere),)
    ledger.release("a")
    assert ledger.usage("n1").pending == ()
    assert ledger.totals().pending == 0


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


def test_the_order_of_events_about_different_objects_does_not_matter() -> None:
    def pod_a(ledger: Ledger) -> None:
        ledger.hold("a", "default/a", "n1", holding(share("n1-gpu0", 2154, 2)))

    def pod_b(ledger: Ledger) -> None:
        ledger.hold("b", "default/b", "n2", holding(share("n2-gpu1", 4096, 4, core=20)))
        ledger.release("b")
        ledger.hold("b", "default/b", "n1", holding(share("n1-gpu1", 4096, 4)))

    def node_1(ledger: Ledger) -> None:
        ledger.set_node(node("n1", V100))
        ledger.set_node(node("n1", V100, T4))

    def node_2(ledger: Ledger) -> None:
        ledger.set_node(node("n2", T4, T4))
        ledger.remove_node("n2")

    results = []
    for order in permutations((pod_a, pod_b, node_1, node_2)):
        ledger = Ledger()
        for event in order:
            event(ledger)
        results.append((ledger.usage("n1"), ledger.usage("n2"), ledger.totals()))
    assert len(results) == 24
    assert all(result == results[0] for result in results)


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


def test_a_node_that_changes_mode_and_placement_keeps_its_pods() -> None:
    ledger = Ledger()
    ledger.set_node(node("n1", T4, T4, mode=NodeMode.CORE_MEM))
    ledger.reserve("a", "default/a", asks(3, 30), "n1")
    for changed in (
        node("n1", T4, T4, mode=NodeMode.SHARE, placement=Placement.SPREAD),
        node("n1", T4, T4, mode=NodeMode.DEFAULT),
        node("n1", T4, T4, refusal="node is switching from core_mem to share"),
    ):
        ledger.set_node(changed)
        assert ledger.node("n1") == changed
        assert used(ledger) == [(3072, 3), (0, 0)]
        assert ledger.usage("n1").gpus[0].used_core == 30
        assert ledger.filter(asks(1), ["n1"]).fits == []
    ledger.set_node(node("n1", T4, T4, mode=NodeMode.CORE_MEM))
    assert ledger.reserve("b", "default/b", asks(3, 70), "n1").gpus[0].index == 0


def test_a_record_of_another_scheduler_counts_in_its_units_where_they_are_the_nodes() -> None:
    ledger = Ledger()
    ledger.set_node(node("n1", V100, V100))
    ledger.hold("a", "default/a", "n1", holding(share("n1-gpu0", 2154, 2, of=15), unit=None))
    ledger.hold("b", "default/b", "n1", holding(share("n1-gpu1", 2154, 3, of=20), unit=None))
    assert used(ledger) == [(2154, 2), (2154, 2)]


def test_a_hundred_nodes_come_and_go_and_columns_serve_again() -> None:
    ledger = Ledger()
    names = [f"n{number}" for number in range(100)]
    for name in names:
        ledger.set_node(node(name, T4))
        ledger.reserve(name, name, asks(15), name)
    ledger.set_node(node("wide", *[T4] * 8))
    for name in names[::2]:
        ledger.remove_node(name)
    for number in range(60):
        ledger.set_node(node(f"m{number}", V100, V100))
        ledger.reserve(f"m{number}", "x", asks(number % 15 + 1), f"m{number}")
    assert ledger.filter(asks(15), [*names, "wide"]).fits == ["wide"]
    fits = ledger.filter(asks(1), [*names, *(f"m{number}" for number in range(60))]).fits
    assert fits == [f"m{number}" for number in range(60)]
    totals = ledger.totals()
    assert (totals.nodes, totals.gpus, totals.pods, totals.pending) == (111, 178, 160, 50)


def test_an_unknown_node_has_no_usage_and_is_no_trouble() -> None:
    ledger = Ledger()
    ledger.remove_node("n1")
    usage = ledger.usage("n1")
    assert (usage.unit, usage.gpus, usage.pending) == (None, (), ())
    assert ledger.node("n1") is None
    assert ledger.score(asks(1), ["n1"]) == [0]


def test_an_empty_record_is_held_and_takes_nothing() -> None:
    ledger = Ledger()
    ledger.set_node(node("n1", T4))
    nothing = Allocation((), {}, None)
    ledger.hold("a", "default/a", "n1", nothing)
    assert ledger.held("a") == Held("a", "default/a", "n1", nothing, confirmed=True)
    assert used(ledger) == [(0, 0)]
    assert ledger.release("a")


def test_shares_say_all_that_the_figures_need() -> None:
    """A share recorded long ago, of a GPU that has grown since, is still worth its MiB."""
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
