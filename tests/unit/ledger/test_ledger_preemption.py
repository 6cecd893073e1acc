"""Victims suffice, none is needless, and the cheapest are chosen; reserved capacity goes to no other pod."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gpushare.api.node.device import Device, NodeDevices, Placement
from gpushare.api.node.modes import NodeMode
from gpushare.api.quantity import MemoryUnit
from gpushare.ledger import Ledger, Refused
from gpushare.ledger.preemption.victims import Plan, Rank
from tests.unit.ledger.ledger_samples import asks


def node(name: str, *gib: int, mode: NodeMode = NodeMode.SHARE, cap: int | None = None) -> NodeDevices:
    devices = tuple(Device(index, f"GPU-{name}-{index}", 1024 * size) for index, size in enumerate(gib))
    return NodeDevices(name, mode, MemoryUnit.GIB, devices, max_pods=cap)


class Cluster:
    """A ledger whose pods have priorities; those below ``priority`` may be evicted."""

    def __init__(self, *nodes: NodeDevices) -> None:
        self.ledger = Ledger()
        self.ranks: dict[str, Rank] = {}
        for one in nodes:
            self.ledger.set_node(one)

    def put(self, uid: str, units: int, priority: int, on: str, core: int = 0, **rank: bool) -> None:
        self.ledger.reserve(uid, f"default/{uid}", asks(units, core), on)
        self.ranks[uid] = Rank(priority, len(self.ranks), **rank)

    def plan(
        self, units: int, priority: int, *nodes: str, core: int = 0, gpus: int = 1, whole: bool = False
    ) -> Plan | None:
        def rank(uid: str) -> Rank | None:
            found = self.ranks[uid]
            return found if found.priority < priority else None

        request = structs.replace(asks(units, core), gpu_count=gpus, whole_device=whole)
        return self.ledger.evictions.plan(request, nodes or ("n",), rank)


def test_free_capacity_on_two_gpus_does_not_add_up_so_the_victims_are_on_one() -> None:
    cluster = Cluster(node("n", 16, 16))
    for number, units in enumerate((6, 6, 6, 6)):
        cluster.put(f"p{number}", units, 1, "n")
    plan = cluster.plan(8, 5)
    assert plan is not None
    assert len(plan.victims) == 1


@pytest.mark.parametrize("large_at", [0, 1, 2])
def test_one_large_pod_is_evicted_instead_of_two_small_ones_of_equal_priority(large_at: int) -> None:
    cluster = Cluster(node("n", 16))
    sizes = [("small", 4), ("little", 4)]
    sizes.insert(large_at, ("large", 8))
    for uid, units in sizes:
        cluster.put(uid, units, 1, "n")
    assert cluster.plan(8, 5).victims == ("large",)  # type: ignore[union-attr]
    assert cluster.plan(4, 5).victims == (sizes[-1][0],), "of single pods the youngest is evicted"  # type: ignore[union-attr]
    cluster.ranks["large"] = Rank(2, 0)
    assert set(cluster.plan(8, 5).victims) == {"small", "little"}, "two of lower priority"  # type: ignore[union-attr]


def test_where_one_of_a_priority_is_evicted_anyway_the_larger_one_spares_others() -> None:
    cluster = Cluster(node("n", 16))
    for uid, units, priority in (("large", 8, 2), ("middle", 4, 2), ("low", 2, 1), ("least", 2, 0)):
        cluster.put(uid, units, priority, "n")
    assert cluster.plan(7, 5).victims == ("large",)  # type: ignore[union-attr]
    assert cluster.plan(4, 5).victims == ("low", "least")  # type: ignore[union-attr]


def test_compute_counts_like_memory_in_the_search_for_a_large_victim() -> None:
    cluster = Cluster(node("n", 16, mode=NodeMode.CORE_MEM))
    for uid, units, core in (("large", 2, 60), ("small", 4, 20), ("little", 4, 20)):
        cluster.put(uid, units, 1, "n", core)
    assert cluster.plan(2, 5, core=40).victims == ("large",)  # type: ignore[union-attr]


def test_the_lowest_priority_is_evicted_and_none_of_equal_or_higher_priority() -> None:
    cluster = Cluster(node("n", 16))
    for uid, units, priority in (("low", 4, 1), ("middle", 4, 2), ("high", 8, 9)):
        cluster.put(uid, units, priority, "n")
    assert cluster.plan(4, 5).victims == ("low",)  # type: ignore[union-attr]
    assert cluster.plan(8, 5).victims == ("middle", "low")  # type: ignore[union-attr]
    assert cluster.plan(9, 5) is None
    assert cluster.plan(4, 1) is None


def test_nodes_with_guarded_victims_come_last_and_nodes_with_fewer_victims_first() -> None:
    cluster = Cluster(node("a", 16), node("b", 16), node("c", 16))
    cluster.put("guarded", 16, 1, "a", guarded=True)
    cluster.put("one", 16, 1, "b")
    cluster.put("two", 8, 1, "c")
    cluster.put("three", 8, 1, "c")
    assert cluster.plan(16, 5, "a", "b", "c").victims == ("one",)  # type: ignore[union-attr]
    assert cluster.plan(16, 5, "a", "c").node == "c"  # type: ignore[union-attr]
    assert cluster.plan(16, 5, "a").victims == ("guarded",)  # type: ignore[union-attr]


def test_pods_that_are_already_terminating_are_not_evicted() -> None:
    cluster = Cluster(node("n", 16))
    cluster.put("leaving", 8, 1, "n", leaving=True)
    cluster.put("other", 8, 1, "n")
    assert cluster.plan(8, 5).victims == ()  # type: ignore[union-attr]
    assert cluster.plan(16, 5).victims == ("other",)  # type: ignore[union-attr]


def test_pods_of_the_other_kind_are_all_evicted_or_the_node_is_not_chosen() -> None:
    cluster = Cluster(node("n", 16, 16, mode=NodeMode.CORE_MEM))
    cluster.put("a", 1, 1, "n")
    cluster.put("b", 1, 2, "n")
    assert set(cluster.plan(4, 5, core=10).victims) == {"a", "b"}  # type: ignore[union-attr]
    assert cluster.plan(4, 2, core=10) is None


def test_a_gpu_at_its_pod_limit_loses_one() -> None:
    cluster = Cluster(node("n", 16, cap=2))
    cluster.put("a", 1, 1, "n")
    cluster.put("b", 1, 2, "n")
    assert cluster.plan(1, 5).victims == ("a",)  # type: ignore[union-attr]


def test_several_gpus_are_freed_together_with_the_fewest_victims() -> None:
    cluster = Cluster(node("n", 16, 16, 16))
    for uid, units, priority in (("a", 12, 1), ("b", 12, 2), ("c", 12, 9)):
        cluster.put(uid, units, priority, "n")
    plan = cluster.plan(8, 5, gpus=2)
    assert plan is not None
    assert (set(plan.victims), sorted(plan.rows)) == ({"a", "b"}, [0, 1])
    assert cluster.plan(8, 5, gpus=3) is None
    assert cluster.plan(4, 5, gpus=3).victims == ()  # type: ignore[union-attr]


def test_for_a_whole_gpu_all_its_pods_are_evicted() -> None:
    cluster = Cluster(node("n", 16, 16))
    for uid, units, priority in (("a", 10, 1), ("b", 2, 2), ("c", 16, 9)):
        cluster.put(uid, units, priority, "n")
    assert set(cluster.plan(1, 5, whole=True).victims) == {"a", "b"}  # type: ignore[union-attr]
    assert cluster.plan(1, 2, whole=True) is None


def test_a_node_at_its_pod_limit_loses_the_pod_of_lowest_priority_on_any_gpu() -> None:
    cluster = Cluster(structs.replace(node("n", 16, 16), max_node_pods=2))
    cluster.put("a", 16, 2, "n")
    cluster.put("b", 1, 1, "n")
    assert cluster.plan(4, 5).victims == ("b",)  # type: ignore[union-attr]


def test_reserved_capacity_goes_to_no_other_pod_until_it_is_released() -> None:
    cluster = Cluster(node("n", 16))
    cluster.put("a", 8, 1, "n")
    cluster.put("b", 8, 1, "n")
    plan = cluster.plan(16, 5)
    assert plan is not None
    ledger = cluster.ledger
    ledger.nominations.add("new", asks(16), plan)
    assert ledger.nominations.node_of("new") == "n"
    ledger.release("a")
    with pytest.raises(Refused):
        ledger.reserve("thief", "default/thief", asks(1), "n")
    assert ledger.usage("n").gpus[0].used_mib == 8 * 1024
    ledger.release("b")
    ledger.nominations.remove("new")
    ledger.nominations.remove("new")
    assert ledger.reserve("new", "default/new", asks(16), "n").mib == 16 * 1024


def test_a_node_with_reserved_capacity_takes_no_pod_of_the_other_kind_nor_evicts_for_one() -> None:
    cluster = Cluster(node("n", 16, 16, mode=NodeMode.CORE_MEM))
    cluster.put("low", 4, 1, "n")
    plan = cluster.plan(4, 5, core=30)
    assert plan is not None
    ledger = cluster.ledger
    ledger.nominations.add("new", asks(4, 30), plan)
    assert ledger.filter(asks(1), ["n"]).fits == []
    assert cluster.plan(1, 9) is None, "the capacity is reserved for a pod of the other kind"
    ledger.release("low")
    assert ledger.filter(asks(1), ["n"]).fits == [], "a pod with memory only would shut out the nominated one"
    assert ledger.filter(asks(1, 5), ["n"]).fits == ["n"]
    assert ledger.filter_for("new", asks(4, 30), ["n"]).fits == ["n"]
    ledger.nominations.remove("new")
    assert ledger.filter(asks(1), ["n"]).fits == ["n"]


def test_reserved_capacity_counts_for_the_nodes_pod_limit_until_it_is_released() -> None:
    capped = structs.replace(node("n", 16, 16), max_node_pods=2)
    cluster = Cluster(capped)
    cluster.put("a", 1, 1, "n")
    cluster.put("b", 1, 2, "n")
    plan = cluster.plan(4, 5)
    assert plan is not None
    ledger = cluster.ledger
    ledger.nominations.add("new", asks(4), plan)
    ledger.release("a")
    with pytest.raises(Refused, match="already has 2 pods on its GPUs, the maximum"):
        ledger.reserve("thief", "default/thief", asks(1), "n")
    another = cluster.plan(4, 5)
    assert another is not None
    assert another.victims == ("b",), "for a second pod the second one is evicted"
    ledger.set_node(structs.replace(capped, placement=Placement.SPREAD))
    assert ledger.filter(asks(1), ["n"]).fits == []
    ledger.nominations.remove("new")
    assert ledger.filter(asks(1), ["n"]).fits == ["n"]
    assert ledger.reserve("new", "default/new", asks(4), "n").mib == 4 * 1024


def test_a_nomination_is_dropped_if_its_gpu_changes_or_the_node_gains_capacity() -> None:
    before = structs.replace(node("n", 16, 12), max_pods=2)
    cluster = Cluster(before)
    cluster.put("a", 16, 1, "n")
    plan = cluster.plan(16, 5)
    assert plan is not None
    first, second = before.devices
    sick = structs.replace(second, healthy=False)
    foreign = structs.replace(second, foreign_mib=1024)
    for start, after in (
        (before, structs.replace(before, devices=(structs.replace(first, total_mib=8192), second))),
        (before, structs.replace(before, devices=(structs.replace(first, cordoned=True), second))),
        (before, structs.replace(before, devices=(structs.replace(first, foreign_mib=1024), second))),
        (before, structs.replace(before, devices=(second,))),
        (before, structs.replace(before, refusal="its mode changes")),
        (before, structs.replace(before, unit=MemoryUnit.MIB_128)),
        (before, structs.replace(before, max_pods=None)),
        (before, structs.replace(before, devices=(*before.devices, Device(2, "GPU-n-2", 1024)))),
        (before, structs.replace(before, devices=(first, structs.replace(second, total_mib=16384)))),
        (structs.replace(before, devices=(first, sick)), before),
        (structs.replace(before, devices=(first, foreign)), before),
    ):
        cluster.ledger.set_node(start)
        cluster.ledger.nominations.add("new", asks(16), plan)
        cluster.ledger.set_node(after)
        assert cluster.ledger.nominations.node_of("new") == "", after
    cluster.ledger.set_node(before)
    cluster.ledger.nominations.add("new", asks(16), plan)
    cluster.ledger.remove_node("n")
    assert cluster.ledger.nominations.node_of("new") == ""
    cluster.ledger.release("a")
    assert cluster.ledger.totals() == Ledger().totals()


@pytest.mark.parametrize(
    "change",
    [
        {"context_mib": 300},
        {"foreign_by": "vllm"},
        {"numa_node": 1},
        {"pci_bus_id": "0000:01:00.0"},
        {"model": "A10"},
    ],
)
def test_a_nomination_survives_what_changes_nothing_about_its_gpus_room(change: dict[str, object]) -> None:
    before = node("n", 16, 12)
    first, second = before.devices
    before = structs.replace(before, devices=(structs.replace(first, foreign_mib=1024), second))
    cluster = Cluster(before)
    cluster.put("a", 15, 1, "n")
    plan = cluster.plan(15, 5)
    assert plan is not None
    assert plan.victims == ("a",)
    cluster.ledger.nominations.add("new", asks(15), plan)
    described = structs.replace(before.devices[0], **change)
    cluster.ledger.set_node(structs.replace(before, devices=(described, second)))
    assert cluster.ledger.nominations.node_of("new") == "n"
    cluster.ledger.release("a")
    assert cluster.ledger.filter(asks(15), ["n"]).fits == []
    assert cluster.ledger.filter_for("new", asks(15), ["n"]).fits == ["n"]


@pytest.mark.parametrize("change", ["others hold more", "a GPU less", "a GPU that is sick", "placement"])
def test_a_nomination_on_a_gpu_survives_losses_on_other_gpus(change: str) -> None:
    before = node("n", 16, 12)
    cluster = Cluster(before)
    cluster.put("a", 16, 1, "n")
    plan = cluster.plan(16, 5)
    assert plan is not None
    ledger = cluster.ledger
    ledger.nominations.add("new", asks(16), plan)
    first, second = before.devices
    after = {
        "others hold more": structs.replace(
            before, devices=(first, structs.replace(second, foreign_mib=2048))
        ),
        "a GPU less": structs.replace(before, devices=(first,)),
        "a GPU that is sick": structs.replace(
            before, devices=(first, structs.replace(second, healthy=False, reason="XID 79"))
        ),
        "placement": structs.replace(before, placement=Placement.SPREAD),
    }[change]
    ledger.set_node(after)
    assert ledger.nominations.node_of("new") == "n"
    ledger.release("a")
    assert ledger.filter(asks(13), ["n"]).fits == [], "no other pod gets it"
    assert ledger.filter_for("new", asks(16), ["n"]).fits == ["n"]
    ledger.nominations.remove("new")
    assert ledger.reserve("x", "default/x", asks(16), "n").gpus[0].index == 0
    ledger.release("x")
    fresh = Ledger()
    fresh.set_node(after)
    assert ledger.totals() == fresh.totals()
    for units in (1, 8, 12, 13, 16):
        assert ledger.filter(asks(units), ["n"]) == fresh.filter(asks(units), ["n"])


PODS = st.lists(st.tuples(st.integers(1, 8), st.integers(0, 3), st.booleans()), max_size=6)


@given(PODS, st.integers(1, 8), st.integers(1, 4), st.sampled_from([(8,), (8, 8)]))
def test_a_plan_is_found_whenever_some_victims_suffice_and_has_no_needless_victim(
    pods: list[tuple[int, int, bool]], units: int, priority: int, gpus: tuple[int, ...]
) -> None:
    cluster = Cluster(node("n", *gpus))
    put = []
    for number, (size, rank, leaving) in enumerate(pods):
        try:
            cluster.put(f"p{number}", size, rank, "n", leaving=leaving)
            put.append(f"p{number}")
        except Refused:
            continue
    leaving_uids = {
        uid for uid in put if cluster.ranks[uid].leaving and cluster.ranks[uid].priority < priority
    }

    def fits_without(gone: set[str]) -> bool:
        ledger = Ledger()
        ledger.set_node(node("n", *gpus))
        for uid in put:
            if uid not in gone | leaving_uids:
                held = cluster.ledger.held(uid)
                assert held is not None
                ledger.hold(uid, held.pod, "n", held.allocation)
        return bool(ledger.filter(asks(units), ["n"]).fits)

    evictable = [uid for uid in put if cluster.ranks[uid].priority < priority and uid not in leaving_uids]
    possible = [
        set(some)
        for size in range(len(evictable) + 1)
        for some in combinations(evictable, size)
        if fits_without(set(some))
    ]
    plan = cluster.plan(units, priority)
    if plan is None:
        assert not possible
        return
    victims = set(plan.victims)
    assert victims in possible
    assert not any(some < victims for some in possible)
    worst = max((cluster.ranks[uid].priority for uid in victims), default=-1)
    worsts = [max((cluster.ranks[uid].priority for uid in some), default=-1) for some in possible]
    assert worst == min(worsts)
    assert len(victims) == min(len(some) for some, its in zip(possible, worsts, strict=True) if its == worst)


def test_no_pods_are_evicted_on_a_node_that_takes_no_new_pods() -> None:
    cluster = Cluster(node("n", 16, 16))
    cluster.put("low", 16, 1, "n")
    cluster.put("low-2", 16, 1, "n")
    cluster.ledger.set_node(structs.replace(node("n", 16, 16), refusal="its mode changes"))
    assert cluster.plan(8, 5) is None
    cluster.ledger.set_node(node("n", 16, 16, mode=NodeMode.MPS))
    assert cluster.plan(4, 5, gpus=2) is None, "on MPS nodes a pod has one GPU"
    assert cluster.plan(4, 5) is not None
    # Compute is offered on other nodes: no pod is evicted for it here.
    cluster.ledger.set_node(node("n", 16, 16))
    assert cluster.plan(4, 5, core=30) is None
