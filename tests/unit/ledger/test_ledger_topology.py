"""Whole GPUs by their number (``aliyun.com/gpu``), and sets of GPUs that are near each other."""

import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.api.allocation.allocation import GpuShare
from gpushare.api.node.device import NodeDevices, Placement
from gpushare.api.node.modes import NodeMode
from gpushare.api.node.topology import MOST_GPUS, TopologyLevels, matrix
from gpushare.api.request.request import ContainerKind, ContainerRequest, Request
from gpushare.ledger import Ledger, Refused
from gpushare.ledger.placement.topology_sets import MOST_KINDS, Nearness
from gpushare.ledger.preemption.victims import Rank
from tests.unit.ledger.ledger_samples import A100, T4, V100, asks, counts, holding, node, share

ISLANDS = matrix(8, lambda a, b: 100 if a // 4 == b // 4 else 1)
SWITCHED = matrix(8, lambda a, b: 450)


def topology(
    name: str = "n1",
    near: TopologyLevels = ISLANDS,
    mode: NodeMode = NodeMode.TOPOLOGY,
    sizes: tuple[int, ...] = (T4,) * 8,
    **more: object,
) -> NodeDevices:
    return msgspec.structs.replace(node(name, *sizes, mode=mode), near=near, **more)  # type: ignore[arg-type]


def ledger_with(*nodes: NodeDevices, policy: Placement = Placement.BINPACK) -> Ledger:
    ledger = Ledger(node_policy=policy)
    for one in nodes:
        ledger.set_node(one)
    return ledger


def indices(ledger: Ledger, uid: str, request: Request, on: str = "n1") -> list[int]:
    return [share.index for share in ledger.reserve(uid, f"default/{uid}", request, on).gpus]


def test_counted_gpus_are_allocated_whole_and_near_each_other() -> None:
    ledger = ledger_with(topology())
    allocation = ledger.reserve("a", "default/a", counts(2), "n1")
    assert [(one.index, one.units, one.device_units, one.mib) for one in allocation.gpus] == [
        (0, 15, 15, T4),
        (1, 15, 15, T4),
    ]
    assert allocation.containers == {"main": allocation.gpus}
    assert indices(ledger, "b", counts(4)) == [4, 5, 6, 7]
    assert indices(ledger, "c", counts(2)) == [2, 3]
    with pytest.raises(Refused, match="needs a GPU completely free, but no GPU is"):
        indices(ledger, "d", counts(1))
    assert ledger.release("a")
    assert indices(ledger, "d", counts(1)) == [0]


def test_a_single_gpu_is_taken_from_an_island_that_is_in_use() -> None:
    ledger = ledger_with(topology())
    assert indices(ledger, "a", counts(1)) == [0]
    assert indices(ledger, "b", counts(1)) == [1]
    assert indices(ledger, "c", counts(4)) == [4, 5, 6, 7]


def test_containers_have_gpus_of_their_own_and_take_over_those_of_init_containers() -> None:
    def request_of(*requested: tuple[str, ContainerKind, int]) -> Request:
        containers = tuple(ContainerRequest(name, kind, 0, 0, 0, gpus) for name, kind, gpus in requested)
        return Request(1, 0, containers, 4, whole_device=True, by_gpu=True)

    app, init, sidecar = ContainerKind.APP, ContainerKind.INIT, ContainerKind.SIDECAR
    request = request_of(("early", init, 2), ("beside", sidecar, 1), ("one", app, 2), ("two", app, 1))
    allocation = ledger_with(topology()).reserve("a", "default/a", request, "n1")
    by_container = {name: [one.index for one in shares] for name, shares in allocation.containers.items()}
    assert by_container == {"early": [0, 1], "beside": [0], "one": [1, 2], "two": [3]}
    assert [one.index for one in allocation.gpus] == [0, 1, 2, 3]


REFUSED: dict[str, tuple[NodeDevices, Request, str, bool]] = {
    "shares on a topology node": (
        topology(),
        asks(1),
        "node shares no GPU memory (it is in mode topology, label ack.node.gpu.schedule)",
        True,
    ),
    "shares of several GPUs on a topology node": (topology(), asks(1, gpus=2), "shares no GPU memory", True),
    "GPUs by number on a node that shares": (
        topology(mode=NodeMode.CGPU),
        counts(1),
        "node offers no whole GPUs (it is in mode cgpu; "
        "aliyun.com/gpu needs label ack.node.gpu.schedule=topology)",
        True,
    ),
    "on a node without a mode": (topology(mode=NodeMode.DEFAULT), counts(1), "offers no whole GPUs", True),
    "a node without GPUs": (
        NodeDevices("n1", NodeMode.TOPOLOGY, node().unit, ()),
        counts(1),
        "node has no GPU",
        True,
    ),
    "a node that is switching": (topology(refusal="node is switching"), counts(1), "node is switching", True),
    "more than it has": (topology(), counts(9), "requests 9 GPUs, but the node has 8", True),
    "too few in service": (
        msgspec.structs.replace(
            node("n1", T4, T4, mode=NodeMode.TOPOLOGY, sick={0: "XID 79"}),
        ),
        counts(2),
        "requests 2 GPUs, but too few of them are in service (GPU 0 is unhealthy: XID 79)",
        True,
    ),
    "as many pods as allowed": (
        topology(max_node_pods=1),
        counts(1),
        "node already has 1 pod on its GPUs, the maximum",
        False,
    ),
    "too few that are free": (
        topology(sizes=(T4, T4)),
        counts(2),
        "needs 2 GPUs completely free, but only GPU 1 is",
        False,
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_has_its_reason(case: str) -> None:
    on_node, request, expected, hopeless = REFUSED[case]
    if on_node.devices and len(on_node.devices) == 2:
        on_node = msgspec.structs.replace(on_node, near=())
    ledger = ledger_with(on_node)
    if not hopeless:
        ledger.reserve("first", "default/first", counts(1), "n1")
    verdict = ledger.filter(request, ["n1"])
    reasons = verdict.hopeless if hopeless else verdict.refused
    assert expected in reasons["n1"]
    with pytest.raises(Refused, match=re.escape(expected)):
        ledger.reserve("x", "default/x", request, "n1")


def test_gpus_of_any_index_are_named() -> None:
    many = topology(near=(), sizes=(T4,) * 128)
    ledger = ledger_with(many, topology("few", sizes=(T4, T4), near=()))
    ledger.reserve("a", "default/a", counts(125), "n1")
    ledger.reserve("b", "default/b", counts(1), "few")
    refused = ledger.filter(counts(4), ["n1"]).refused
    assert refused == {"n1": "needs 4 GPUs completely free, but only GPUs 125, 126 and 127 are"}
    ledger.release("a")
    for number, index in enumerate((0, 63, 64)):
        share = many.devices[index]
        ledger.hold(f"{number}", f"{number}", "n1", holding(GpuShare(share.uuid, index, T4, 15, 15)))
    assert "GPUs 1, 2, 3" in ledger.filter(counts(126), ["n1"]).refused["n1"]
    assert "62, 65, 66" in ledger.filter(counts(126), ["n1"]).refused["n1"]


def test_a_gpu_with_shares_from_another_mode_is_not_allocated_whole() -> None:
    ledger = ledger_with(topology(mode=NodeMode.CORE_MEM))
    assert indices(ledger, "share", asks(3, 30)) == [0]
    ledger.set_node(topology())
    assert indices(ledger, "a", counts(3)) == [1, 2, 3]
    with pytest.raises(Refused, match="needs 5 GPUs completely free, but only GPUs 4, 5, 6 and 7 are"):
        indices(ledger, "b", counts(5))
    # And back: GPUs that are allocated whole are full.
    ledger.release("share")
    ledger.set_node(topology(mode=NodeMode.CGPU))
    assert [gpu.free_mib for gpu in ledger.usage("n1").gpus] == [T4, 0, 0, 0, *[T4] * 4]
    assert indices(ledger, "c", asks(1)) == [0]


def test_the_node_with_the_nearest_set_is_preferred() -> None:
    ledger = ledger_with(topology("far", ()), topology("islands"), topology("switched", SWITCHED))
    assert ledger.score(counts(2), ["far", "islands", "switched", "unknown"]) == [0, 5, 10, 0]
    # An island is too small for five.
    assert ledger.score(counts(5), ["far", "islands", "switched"]) == [0, 5, 10]
    for number in range(3):
        ledger.reserve(f"{number}", f"default/{number}", counts(2), "switched")
    assert ledger.score(counts(4), ["far", "islands", "switched"]) == [0, 10, 0]


@pytest.mark.parametrize(
    ("policy", "points"),
    [(Placement.BINPACK, [0, 10]), (Placement.FRAGMENTATION, [0, 10]), (Placement.SPREAD, [10, 0])],
)
def test_between_equally_near_sets_the_policy_decides_the_node(policy: Placement, points: list[int]) -> None:
    ledger = ledger_with(topology("empty"), topology("begun"), policy=policy)
    ledger.reserve("a", "default/a", counts(1), "begun")
    assert ledger.score(counts(1), ["empty", "begun"]) == points
    assert ledger.score(counts(2), ["empty", "begun"]) == points
    assert ledger.standing_out(counts(2), ["empty", "begun"]) == [(("empty", "begun")[points[1] > 0], 10)]


@pytest.mark.parametrize("placement", Placement)
def test_shares_of_several_gpus_are_near_each_other_and_then_follow_the_placement(
    placement: Placement,
) -> None:
    ledger = ledger_with(topology(mode=NodeMode.CGPU, placement=placement))
    if placement is Placement.SPREAD:
        assert indices(ledger, "a", asks(2, gpus=2)) == [0, 1]
        assert indices(ledger, "b", asks(2, gpus=2)) == [2, 3]
        assert indices(ledger, "c", asks(2, gpus=3)) == [4, 5, 6]
        return
    assert indices(ledger, "a", asks(10)) == [0]
    # The tightest are GPU 0 and any other: one of its island is taken.
    assert indices(ledger, "b", asks(4, gpus=2)) == [0, 1]
    assert indices(ledger, "c", asks(8, gpus=4)) == [4, 5, 6, 7]
    assert indices(ledger, "d", asks(7, gpus=2)) == [4, 5]


def test_shares_of_several_gpus_prefer_the_node_with_the_nearest_set_then_the_policy() -> None:
    far, near = topology("far", (), NodeMode.CGPU), topology("near", ISLANDS, NodeMode.CGPU)
    ledger = ledger_with(far, near)
    ledger.reserve("a", "default/a", asks(8, gpus=2), "far")
    assert ledger.score(asks(4, gpus=2), ["far", "near", "none"]) == [0, 10, 0]
    assert ledger.score(asks(4, gpus=9), ["far", "near"]) == [0, 0]
    # Where all are equally near, it is as if no topology were known.
    plain = ledger_with(
        topology("begun", SWITCHED, NodeMode.CGPU), topology("empty", SWITCHED, NodeMode.CGPU)
    )
    plain.reserve("a", "default/a", asks(8, gpus=2), "begun")
    unknown = ledger_with(topology("begun", (), NodeMode.CGPU), topology("empty", (), NodeMode.CGPU))
    unknown.reserve("a", "default/a", asks(8, gpus=2), "begun")
    request = asks(4, gpus=2)
    assert plain.score(request, ["begun", "empty"]) == unknown.score(request, ["begun", "empty"])


def test_the_score_is_of_the_near_set_not_of_the_gpus_that_placement_alone_would_take() -> None:
    """The tightest two GPUs of one node are on two islands, so that it allocates an empty GPU."""
    ledger = ledger_with(
        topology("apart", ISLANDS, NodeMode.CGPU), topology("together", ISLANDS, NodeMode.CGPU)
    )
    for uid, on, gpu, mib in (
        ("a", "apart", 0, 9000),
        ("b", "apart", 4, 9000),
        ("c", "together", 0, 6000),
        ("d", "together", 1, 6000),
    ):
        ledger.hold(uid, "p", on, holding(share(f"{on}-gpu{gpu}", mib)))
    assert ledger.score(asks(4, gpus=2), ["apart", "together"]) == [0, 10]
    assert indices(ledger, "e", asks(4, gpus=2), "together") == [0, 1]
    assert indices(ledger, "f", asks(4, gpus=2), "apart") == [0, 1]


@given(
    pairs=st.lists(st.sampled_from((1, 1, 4, 100)), min_size=15, max_size=15),
    used=st.lists(st.sampled_from((0, 0, 3000, 3000, 9000, 15000)), min_size=6, max_size=6),
    count=st.integers(2, 4),
    placement=st.sampled_from(Placement),
)
@settings(max_examples=150)
def test_the_memory_reported_as_left_over_is_what_the_chosen_set_leaves(
    pairs: list[int], used: list[int], count: int, placement: Placement
) -> None:
    near = matrix(6, lambda a, b: pairs[max(a, b) * (max(a, b) - 1) // 2 + min(a, b)])
    ledger = ledger_with(topology("n1", near, NodeMode.CGPU, (T4,) * 6, placement=placement))
    for gpu, mib in enumerate(used):
        if mib:
            ledger.hold(f"u{gpu}", "p", "n1", holding(share(f"n1-gpu{gpu}", mib)))
    request = asks(4, gpus=count)
    if not ledger.filter(request, ["n1"]).fits:
        return
    column = ledger._books.column_of["n1"]
    reported = int(ledger._left.of(request)[column])
    chosen = indices(ledger, "a", request)
    assert reported == sum(T4 - used[gpu] - 4096 for gpu in chosen) // count


def test_on_nodes_with_very_many_gpus_the_placement_alone_decides() -> None:
    sizes = (V100,) * MOST_GPUS + (T4,)
    many = topology(near=matrix(MOST_GPUS + 1, lambda a, b: 100), sizes=sizes)
    ledger = ledger_with(many)
    assert indices(ledger, "a", counts(2)) == [0, 1]
    assert ledger.score(counts(2), ["n1"]) == [10]


def test_kinds_of_nodes_beyond_a_limit_count_as_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpushare.ledger.placement.topology_sets.MOST_KINDS", 2)
    assert MOST_KINDS > 2
    near = Nearness()
    assert [near.number_of(one) for one in ((), ISLANDS, SWITCHED, ISLANDS)] == [0, 1, 0, 1]


def test_the_cache_of_sets_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpushare.ledger.placement.topology_sets._MOST_KEPT", 1)
    ledger = ledger_with(topology("islands"), topology("switched", SWITCHED))
    for _ in range(2):
        assert ledger.score(counts(2), ["islands", "switched"]) == [0, 10]
        assert ledger.score(counts(3), ["islands", "switched"]) == [0, 10]


def test_requests_by_gpu_count_do_not_enter_the_workload_mix() -> None:
    ledger = ledger_with(node("n1", T4), policy=Placement.FRAGMENTATION)
    ledger.arrived(counts(4))
    assert ledger.score(asks(1), ["n1"]) == [10]


def test_whole_gpus_are_freed_by_evicting_the_pods_that_hold_them() -> None:
    ledger = ledger_with(topology(sizes=(A100, A100), near=()))
    assert indices(ledger, "low", counts(1)) == [0]
    assert indices(ledger, "lower", counts(1)) == [1]
    ranks = {"low": Rank(5), "lower": Rank(1)}
    plan = ledger.evictions.plan(counts(1), ["n1"], ranks.get)
    assert plan is not None
    assert (plan.rows, plan.victims) == ((1,), ("lower",))
    ledger.nominations.add("high", counts(1), plan)
    assert "but no GPU is" in ledger.filter(counts(1), ["n1"]).refused["n1"]
    ledger.release("lower")
    assert ledger.filter_for("high", counts(1), ["n1"]).fits == ["n1"]
    assert ledger.filter(counts(1), ["n1"]).fits == []
    ledger.nominations.remove("high")
    assert indices(ledger, "high", counts(1)) == [1]
    both = ledger.evictions.plan(counts(2), ["n1"], lambda uid: Rank(0))
    assert both is not None
    assert set(both.victims) == {"low", "high"}
    assert ledger.evictions.plan(asks(1), ["n1"], ranks.get) is None
