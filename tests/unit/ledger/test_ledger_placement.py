"""Which GPU of a node, and which node, a pod is given."""

import msgspec
import pytest

from gpushare.api.allocation.allocation import GpuShare
from gpushare.api.node.device import Placement
from gpushare.api.node.modes import NodeMode
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.request import ContainerKind, ContainerRequest, Request
from gpushare.ledger import Held, Ledger, Refused
from tests.unit.ledger.ledger_samples import A100, T4, V100, asks, holding, node, share, uuids


def placed(ledger: Ledger, uid: str, request: Request, on: str = "n1") -> int:
    """The index of the GPU that the pod is given."""
    return ledger.reserve(uid, f"default/{uid}", request, on).gpus[0].index


def test_what_others_hold_is_not_given_away() -> None:
    first, second = node("n1", T4, T4).devices
    ledger = Ledger()
    taken = msgspec.structs.replace(first, foreign_mib=4 * 1024)
    ledger.set_node(msgspec.structs.replace(node("n1", T4, T4), devices=(taken, second)))
    assert ledger.usage("n1").gpus[0].free_mib == 11 * 1024
    ledger.reserve("a", "a", asks(12), "n1")
    assert ledger.usage("n1").gpus[1].used_units == 12
    with pytest.raises(Refused, match=r"no single GPU has 12 GiB free \(largest free: 11 GiB on GPU 0\)"):
        ledger.reserve("b", "b", asks(12), "n1")
    ledger.set_node(node("n1", T4, T4))
    ledger.reserve("b", "b", asks(12), "n1")


def test_a_pod_is_granted_its_part_of_the_gpu_rounded_down() -> None:
    ledger = Ledger()
    ledger.set_node(node("n1", V100, mode=NodeMode.CORE_MEM))
    request = Request(
        3,
        30,
        (
            ContainerRequest("init", ContainerKind.INIT, 0, 3, 30),
            ContainerRequest("main", ContainerKind.APP, 0, 2, 30),
        ),
    )
    allocation = ledger.reserve("a", "default/a", request, "n1")
    assert allocation.gpus == (GpuShare("n1-gpu0", 0, 3232, 3, 15, 30),)
    assert allocation.containers["main"] == (GpuShare("n1-gpu0", 0, 2154, 2, 15, 30),)
    assert allocation.unit is MemoryUnit.GIB
    assert ledger.held("a") == Held("a", "default/a", "n1", allocation, confirmed=False)


def test_binpack_fills_the_gpu_that_it_leaves_least_of() -> None:
    ledger = Ledger()
    ledger.set_node(node("n1", A100, T4, T4))
    assert [placed(ledger, f"p{n}", asks(4)) for n in range(8)] == [1, 1, 1, 2, 2, 2, 0, 0]
    assert placed(ledger, "small", asks(3)) == 1


def test_spread_takes_the_most_free_then_the_fewest_pods_then_the_first() -> None:
    ledger = Ledger()
    ledger.set_node(node("n1", T4, T4, T4, placement=Placement.SPREAD))
    assert [placed(ledger, f"p{n}", asks(4)) for n in range(3)] == [0, 1, 2]
    ledger.hold("q", "default/q", "n1", holding(share("n1-gpu0", 0, 0)))
    assert placed(ledger, "r", asks(1)) == 1
    assert placed(ledger, "s", asks(1)) == 2
    assert placed(ledger, "t", asks(1)) == 0


def test_three_pods_with_30_percent_share_one_gpu_of_four() -> None:
    ledger = Ledger()
    ledger.set_node(node("n1", V100, V100, V100, V100, mode=NodeMode.CORE_MEM))
    assert [placed(ledger, f"p{n}", asks(2, 30)) for n in range(4)] == [0, 0, 0, 1]
    usage = ledger.usage("n1").gpus[0]
    assert (usage.used_core, usage.used_mib, usage.used_units, usage.free_mib) == (90, 6462, 6, 9698)


def test_memory_alone_is_welcome_on_a_compute_node_that_is_empty() -> None:
    ledger = Ledger()
    ledger.set_node(node("n1", T4, mode=NodeMode.CORE_MEM))
    assert placed(ledger, "a", asks(2)) == 0
    ledger.release("a")
    assert placed(ledger, "b", asks(2, 5)) == 0


def test_a_reserved_pod_keeps_the_other_kind_out_until_it_is_released() -> None:
    ledger = Ledger()
    ledger.set_node(node("n1", T4, T4, mode=NodeMode.CORE_MEM))
    placed(ledger, "a", asks(1, 5))
    assert ledger.filter(asks(1), ["n1"]).fits == []
    ledger.release("a")
    assert ledger.filter(asks(1), ["n1"]).fits == ["n1"]


def test_two_pods_that_race_for_the_last_unit_do_not_both_get_it() -> None:
    ledger = Ledger()
    ledger.set_node(node("n1", T4))
    placed(ledger, "a", asks(14))
    assert ledger.filter(asks(1), ["n1"]).fits == ["n1"]
    placed(ledger, "b", asks(1))
    with pytest.raises(Refused):
        placed(ledger, "c", asks(1))
    assert ledger.usage("n1").gpus[0].used_units == 15


def test_reserving_again_on_the_same_node_gives_the_same_allocation() -> None:
    ledger = Ledger()
    ledger.set_node(node("n1", T4))
    first = ledger.reserve("a", "default/a", asks(15), "n1")
    assert ledger.reserve("a", "default/a", asks(15), "n1") is first
    ledger.hold("a", "default/a", "n1", first)
    assert ledger.reserve("a", "default/a", asks(15), "n1") is first
    assert ledger.usage("n1").gpus[0].used_units == 15


def test_a_reservation_moves_when_another_node_is_chosen() -> None:
    ledger = Ledger()
    ledger.set_node(node("n1", T4))
    ledger.set_node(node("n2", T4))
    placed(ledger, "a", asks(15), "n1")
    placed(ledger, "a", asks(15), "n2")
    assert ledger.usage("n1").gpus[0].used_mib == 0
    assert ledger.usage("n2").gpus[0].pods == ("a",)
    assert ledger.totals().reserved == 1


def test_a_reservation_stays_where_it_was_when_the_other_node_refuses() -> None:
    ledger = Ledger()
    ledger.set_node(node("n1", T4))
    first = ledger.reserve("a", "default/a", asks(2), "n1")
    with pytest.raises(Refused):
        ledger.reserve("a", "default/a", asks(2), "n2")
    assert ledger.held("a") == Held("a", "default/a", "n1", first, confirmed=False)


def test_a_bound_pod_is_given_nothing_on_another_node() -> None:
    ledger = Ledger()
    ledger.set_node(node("n2", T4))
    ledger.hold("a", "default/a", "n1", holding(share("n1-gpu0", 1024)))
    with pytest.raises(Refused, match="pod default/a already holds its share on node n1") as refused:
        ledger.reserve("a", "default/a", asks(1), "n2")
    assert refused.value.hopeless


def test_filter_keeps_the_order_of_the_nodes_that_fit() -> None:
    ledger = Ledger()
    for name in ("n1", "n2", "n3"):
        ledger.set_node(node(name, T4))
    assert ledger.filter(asks(1), ["n3", "n1", "n2"]).fits == ["n3", "n1", "n2"]
    placed(ledger, "a", asks(15), "n1")
    assert ledger.filter(asks(1), ("n3", "n1", "n2")).fits == ["n3", "n2"]
    assert ledger.filter(asks(1), []).fits == []


def test_nodes_with_other_units_weigh_the_same_number_differently() -> None:
    ledger = Ledger()
    ledger.set_node(node("gib", T4))
    ledger.set_node(node("small", T4, unit=MemoryUnit.MIB_128))
    verdict = ledger.filter(asks(16), ["gib", "small"])
    assert verdict.fits == ["small"]
    assert ledger.reserve("a", "default/a", asks(16), "small").mib == 2048


def test_the_fuller_node_scores_higher_when_nodes_are_packed() -> None:
    ledger = Ledger()
    for name in ("n1", "n2", "n3"):
        ledger.set_node(node(name, 10 * 1024))
    placed(ledger, "a", asks(8), "n1")
    placed(ledger, "b", asks(3), "n2")
    names = ["n3", "n2", "n1", "unknown"]
    assert ledger.score(asks(2), names) == [0, 5, 10, 0]
    assert ledger.score(asks(3), names) == [0, 10, 0, 0]
    assert ledger.score(asks(20), names) == [0, 0, 0, 0]


def test_the_emptier_node_scores_higher_when_nodes_are_spread() -> None:
    ledger = Ledger(node_policy=Placement.SPREAD)
    for name in ("n1", "n2", "n3"):
        ledger.set_node(node(name, 10 * 1024))
    placed(ledger, "a", asks(8), "n1")
    placed(ledger, "b", asks(3), "n2")
    assert ledger.score(asks(2), ["n3", "n2", "n1"]) == [10, 5, 0]


def test_a_small_gpu_is_preferred_to_a_large_one_as_within_a_node() -> None:
    ledger = Ledger()
    ledger.set_node(node("large", A100))
    ledger.set_node(node("small", T4))
    ledger.set_node(node("both", A100, T4))
    assert ledger.score(asks(4), ["large", "small", "both"]) == [0, 10, 10]
    assert uuids(ledger.reserve("a", "default/a", asks(4), "both").gpus) == ["both-gpu1"]


def test_the_score_follows_the_gpu_that_the_nodes_own_placement_takes() -> None:
    ledger = Ledger()
    ledger.set_node(node("pack", 10 * 1024, 10 * 1024))
    ledger.set_node(node("spread", 10 * 1024, 10 * 1024, placement=Placement.SPREAD))
    placed(ledger, "a", asks(6), "pack")
    placed(ledger, "b", asks(6), "spread")
    assert ledger.score(asks(2), ["pack", "spread"]) == [10, 0]


def test_compute_decides_which_gpus_count_for_the_score() -> None:
    ledger = Ledger()
    ledger.set_node(node("n1", 10 * 1024, 10 * 1024, mode=NodeMode.CORE_MEM))
    placed(ledger, "a", asks(6, 90))
    ledger.set_node(node("n2", 6 * 1024, mode=NodeMode.CORE_MEM))
    assert ledger.score(asks(2, 5), ["n1", "n2"]) == [10, 0]
    assert ledger.score(asks(2, 50), ["n1", "n2"]) == [0, 10]
    assert ledger.score(asks(2), ["n1", "n2"]) == [0, 10]


def test_which_gpus_are_tight_is_reckoned_from_what_is_left() -> None:
    """A GPU with more free may be the one with less left over, where GPUs differ in size a little."""
    ledger = Ledger()
    ledger.set_node(node("n1", 16384, 16160))
    assert placed(ledger, "a", asks(15)) == 1
    assert placed(ledger, "b", asks(16)) == 0


def test_memory_that_is_just_enough_is_enough() -> None:
    ledger = Ledger()
    ledger.set_node(node("n1", V100))
    ledger.hold("a", "default/a", "n1", holding(share("n1-gpu0", V100 - 2154)))
    assert ledger.filter(asks(2), ["n1"]).fits == ["n1"]
    assert ledger.filter(asks(3), ["n1"]).fits == []
    ledger.hold("a", "default/a", "n1", holding(share("n1-gpu0", V100 - 2153)))
    assert ledger.filter(asks(2), ["n1"]).fits == []


def test_spread_goes_by_what_is_left_over_among_nodes_as_among_gpus() -> None:
    """Both GPUs have as much free; of the larger one three units are worth more."""
    both = Ledger()
    both.set_node(node("n1", 5000, 4096, placement=Placement.SPREAD))
    both.hold("a", "default/a", "n1", holding(share("n1-gpu0", 904)))
    assert placed(both, "b", asks(3)) == 1
    ledger = Ledger(node_policy=Placement.SPREAD)
    ledger.set_node(node("large", 5000))
    ledger.set_node(node("small", 4096))
    ledger.hold("a", "default/a", "large", holding(share("large-gpu0", 904)))
    assert ledger.score(asks(3), ["large", "small"]) == [0, 10]


def test_a_difference_that_is_small_beside_the_largest_gpu_is_told_all_the_same() -> None:
    ledger = Ledger()
    for name in ("n1", "n2", "n3"):
        ledger.set_node(node(name, A100, unit=MemoryUnit.MIB_128))
    placed(ledger, "a", asks(101), "n1")
    placed(ledger, "b", asks(100), "n2")
    assert ledger.score(asks(64), ["n1", "n2", "n3"]) == [10, 5, 0]


@pytest.mark.parametrize(("policy", "points"), [(Placement.BINPACK, [10, 10]), (Placement.SPREAD, [0, 10])])
def test_of_nodes_with_equal_gpus_free_spread_takes_the_one_with_fewer_pods(
    policy: Placement, points: list[int]
) -> None:
    ledger = Ledger(node_policy=policy)
    for name in ("begun", "empty"):
        ledger.set_node(node(name, T4, T4, placement=policy))
    placed(ledger, "a", asks(15), "begun")
    assert ledger.score(asks(4), ["begun", "empty"]) == points


@pytest.mark.parametrize("policy", [Placement.BINPACK, Placement.SPREAD])
def test_memory_alone_closes_no_node_to_compute_while_another_has_room(policy: Placement) -> None:
    ledger = Ledger(node_policy=policy)
    ledger.set_node(node("core", T4, mode=NodeMode.CORE_MEM, placement=policy))
    worse = A100 if policy is Placement.BINPACK else 6 * 1024
    ledger.set_node(node("cgpu", worse, placement=policy))
    assert ledger.score(asks(4), ["core", "cgpu"]) == [0, 10]
    assert ledger.score(asks(4), ["core"]) == [10]
    ledger.set_node(node("core-2", T4, mode=NodeMode.CORE_MEM, placement=policy))
    assert ledger.score(asks(4, 5), ["core", "cgpu", "core-2"]) == [10, 0, 10]
    placed(ledger, "a", asks(1), "core")
    # It is closed: nothing is lost any more.
    assert ledger.score(asks(4), ["core", "cgpu", "core-2"]) == [10, 5, 0]


def test_compute_that_is_just_enough_is_enough() -> None:
    ledger = Ledger()
    ledger.set_node(node("n1", T4, mode=NodeMode.CORE_MEM))
    assert ledger.filter(asks(1, 100), ["n1"]).fits == ["n1"]
    placed(ledger, "a", asks(1, 30))
    assert ledger.filter(asks(1, 70), ["n1"]).fits == ["n1"]
    assert ledger.filter(asks(1, 75), ["n1"]).fits == []
    assert placed(ledger, "b", asks(1, 70)) == 0


def test_nodes_that_do_not_fit_have_no_part_in_the_score() -> None:
    ledger = Ledger()
    ledger.set_node(node("small", 10 * 1024))
    ledger.set_node(node("full", A100))
    placed(ledger, "a", asks(79), "full")
    assert ledger.score(asks(5), ["small", "full"]) == [10, 0]


def test_a_cordoned_gpu_takes_nothing_new_and_keeps_what_it_has() -> None:
    ledger = Ledger()
    free = node("n1", T4, T4)
    ledger.set_node(free)
    assert placed(ledger, "before", asks(3)) == 0
    first, second = free.devices
    closed = msgspec.structs.replace(first, cordoned=True)
    ledger.set_node(msgspec.structs.replace(free, devices=(closed, second)))
    assert ledger.usage("n1").gpus[0].pods == ("before",)
    assert placed(ledger, "after", asks(12)) == 1
    with pytest.raises(Refused, match=r"\(largest free: 3 GiB on GPU 1\); GPU 0 is cordoned$"):
        placed(ledger, "more", asks(4))
    with pytest.raises(
        Refused, match=r"needs 2 GPUs .*, only GPU 1 has; GPU 0 is cordoned$|too few of them are in service"
    ):
        placed(ledger, "two", asks(1, gpus=2))
    ledger.set_node(free)
    assert placed(ledger, "more", asks(4)) == 0


def test_a_node_takes_as_many_pods_as_its_label_allows() -> None:
    ledger = Ledger()
    ledger.set_node(msgspec.structs.replace(node("n1", T4, T4), max_node_pods=2))
    placed(ledger, "a", asks(1))
    placed(ledger, "b", asks(1, gpus=2))
    says = r"node already has 2 pods on its GPUs, the most allowed \(label gpushare.dev/max-pods-per-node\)"
    for request in (asks(1), asks(1, gpus=2), asks(1, whole=True)):
        with pytest.raises(Refused, match=says) as refused:
            placed(ledger, "c", request)
        assert not refused.value.hopeless
    ledger.release("a")
    placed(ledger, "c", asks(1))
    ledger.set_node(node("n1", T4, T4))
    placed(ledger, "d", asks(1))
