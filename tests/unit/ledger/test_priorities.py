"""Nodes where pods could be evicted for another: none is missed, the lowest priorities come first, whatever happens to nodes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gpushare.api.node.device import Device, NodeDevices
from gpushare.api.node.modes import NodeMode
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.request import Request
from gpushare.ledger import Ledger
from gpushare.ledger.preemption.victims import ENOUGH, MOST_TRIED, Plan, Rank
from gpushare.ledger.priorities import ANY, LEAVING, MOST_CLASSES, Priorities
from tests.unit.ledger.ledger_samples import asks, counts, holding, share

NODES = ("a", "b", "c")


def node(name: str, *gib: int, mode: NodeMode = NodeMode.CORE_MEM, cap: int | None = None) -> NodeDevices:
    devices = tuple(Device(index, f"GPU-{name}-{index}", 1024 * size) for index, size in enumerate(gib))
    return NodeDevices(name, mode, MemoryUnit.GIB, devices, max_pods=cap)


class Cluster:
    """A ledger with the priorities of its pods."""

    def __init__(self, *nodes: NodeDevices) -> None:
        self.ledger = Ledger()
        self.ranks: dict[str, Rank] = {}
        for one in nodes:
            self.ledger.set_node(one)

    def put(
        self, on: str, gpu: int, units: int, priority: int, *, core: int = 0, leaving: bool = False
    ) -> str:
        uid = f"p{len(self.ranks)}"
        allocation = holding(share(f"GPU-{on}-{gpu}", 1024 * units, units, 16, core=core, index=gpu))
        self.ledger.hold(uid, f"default/{uid}", on, allocation, priority=LEAVING if leaving else priority)
        self.ranks[uid] = Rank(priority, len(self.ranks), leaving)
        return uid

    def plan(
        self, request: Request, below: int, *, narrowed: bool, nodes: tuple[str, ...] = NODES
    ) -> Plan | None:
        def rank(uid: str) -> Rank | None:
            found = self.ranks[uid]
            return found if found.leaving or found.priority < below else None

        return self.ledger.evictions.plan(request, nodes, rank, priority=below if narrowed else None)


pods = st.tuples(
    st.sampled_from(NODES),
    st.integers(0, 1),
    st.integers(1, 9),
    st.integers(0, 4),
    st.booleans(),
)
requests = st.builds(
    asks, st.integers(1, 16), st.sampled_from([0, 0, 30]), gpus=st.just(1), whole=st.booleans()
) | st.builds(asks, st.integers(1, 12), gpus=st.just(2))


@given(st.lists(pods, max_size=12), requests, st.integers(0, 5), st.booleans(), st.none() | st.integers(1, 3))
def test_the_narrowed_search_finds_what_the_full_search_finds(
    placed: list[tuple[str, int, int, int, bool]], request: Request, below: int, core: bool, cap: int | None
) -> None:
    cluster = Cluster(*(node(name, 16, 16, cap=cap) for name in NODES))
    used: dict[tuple[str, int], int] = {}
    for on, gpu, units, priority, leaving in placed:
        if used.get((on, gpu), 0) + units <= 16:
            used[on, gpu] = used.get((on, gpu), 0) + units
            cluster.put(on, gpu, units, priority, core=10 if core and on == "a" else 0, leaving=leaving)
    short = cluster.plan(request, below, narrowed=True)
    full = cluster.plan(request, below, narrowed=False)
    assert (short is None) is (full is None)
    if short is not None and full is not None:
        assert short.cost[:2] == full.cost[:2]


def test_priorities_are_forgotten_with_their_pods_and_follow_their_nodes() -> None:
    cluster = Cluster(node("a", 16, 16), node("b", 16))
    uid = cluster.put("a", 0, 16, 1)
    cluster.put("a", 1, 16, 9)
    cluster.put("b", 0, 16, 9)
    assert cluster.plan(asks(4), 5, narrowed=True) == cluster.plan(asks(4), 5, narrowed=False)
    found = cluster.plan(asks(4), 5, narrowed=True)
    assert found is not None
    assert found.victims == (uid,)
    # The node returns with its GPUs in the other order, and later there are more nodes: arrays grow.
    turned = node("a", 16, 16)
    devices = (Device(0, "GPU-a-1", 16384), Device(1, "GPU-a-0", 16384))
    cluster.ledger.set_node(NodeDevices("a", turned.mode, turned.unit, devices))
    assert cluster.plan(asks(4), 5, narrowed=True) == found._replace(rows=(1,))
    for number in range(80):
        cluster.ledger.set_node(node(f"more-{number}", 16, 16, 16))
    assert cluster.plan(asks(4), 5, narrowed=True) == found._replace(rows=(1,))
    cluster.ledger.release(uid)
    cluster.put("a", 0, 16, 9)
    assert cluster.plan(asks(4), 5, narrowed=True) is None
    cluster.ledger.remove_node("a")
    assert cluster.plan(asks(4), 10, narrowed=True, nodes=("a",)) is None


def test_the_priority_below_which_pods_may_be_evicted_can_differ_by_node() -> None:
    cluster = Cluster(*(node(name, 16) for name in NODES))
    for name, priority in (("a", 9), ("b", 1), ("c", 1)):
        cluster.put(name, 0, 16, priority)

    def where(limits: dict[str, int], request: Request) -> list[list[str]]:
        found = cluster.ledger.evictions.stages(request, NODES, limits)
        return [names for names in map(list, found) if names]

    assert where({"a": ANY, "b": 5}, asks(4)) == [["b"], ["a"]]
    assert where({"a": 5, "c": 5}, asks(4)) == [["c"]]
    assert where({}, asks(4)) == []
    held = cluster.ledger.held("p0")
    assert held is not None
    cluster.ledger.hold("p0", "default/p0", "a", held.allocation, priority=LEAVING)
    assert where({}, asks(4)) == [["a"]], "a terminating pod counts as gone, whatever the limits"
    assert where({"b": 5}, structs.replace(asks(4), unit_mib=128)) == []
    assert where({"b": 5}, structs.replace(asks(4), unit_mib=1024)) == [["a"], ["b"]]


def test_requests_by_gpu_count_evict_only_on_nodes_that_serve_them() -> None:
    cluster = Cluster(node("a", 16, 16, mode=NodeMode.TOPOLOGY), node("b", 16, 16))
    for name in ("a", "b"):
        cluster.put(name, 0, 16, 1)
        cluster.put(name, 1, 16, 9)
    one = cluster.plan(counts(1), 5, narrowed=True, nodes=("b", "a"))
    assert one is not None
    assert (one.node, one.victims) == ("a", ("p0",))
    assert one == cluster.plan(counts(1), 5, narrowed=False, nodes=("b", "a"))
    assert cluster.plan(counts(2), 5, narrowed=True, nodes=("b", "a")) is None
    both = cluster.plan(counts(2), 10, narrowed=True, nodes=("b", "a"))
    assert both is not None
    assert both.node == "a"
    assert cluster.plan(asks(4), 10, narrowed=True, nodes=("a",)) is None


def test_a_pod_that_begins_to_terminate_counts_as_gone_immediately() -> None:
    cluster = Cluster(node("a", 16), node("b", 16))
    uid = cluster.put("a", 0, 16, 1)
    cluster.put("b", 0, 16, 0)
    held = cluster.ledger.held(uid)
    assert held is not None
    assert cluster.plan(asks(4), 5, narrowed=True, nodes=("a", "b")).node == "b"  # type: ignore[union-attr]
    cluster.ledger.hold(uid, "default/x", "a", held.allocation, priority=LEAVING)
    cluster.ranks[uid] = Rank(1, 0, leaving=True)
    found = cluster.plan(asks(4), 5, narrowed=True, nodes=("a", "b"))
    assert found is not None
    assert (found.node, found.victims) == ("a", ())


def test_closed_nodes_are_left_out() -> None:
    for mode, request in ((NodeMode.SHARE, asks(4, 30)), (NodeMode.MPS, asks(4, gpus=2))):
        cluster = Cluster(node("a", 16, 16, mode=mode))
        cluster.put("a", 0, 16, 0)
        cluster.put("a", 1, 16, 0)
        assert cluster.plan(request, 5, narrowed=True, nodes=("a",)) is None
        assert cluster.plan(asks(4), 5, narrowed=True, nodes=("a",)) is not None


def test_the_full_search_agrees_on_closed_nodes_and_on_pods_on_two_gpus() -> None:
    for mode, request in ((NodeMode.SHARE, asks(4, 30)), (NodeMode.MPS, asks(4, gpus=2))):
        cluster = Cluster(node("a", 16, 16, mode=mode))
        cluster.put("a", 0, 16, 0)
        assert cluster.plan(request, 5, narrowed=False, nodes=("a",)) is None
    closed = NodeDevices("a", NodeMode.SHARE, MemoryUnit.GIB, node("a", 16).devices, refusal="switching")
    assert Cluster(closed).plan(asks(1), 5, narrowed=False, nodes=("a",)) is None
    cluster = Cluster(node("a", 16, 16))
    both = holding(*(share(f"GPU-a-{gpu}", 16384, 16, 16, index=gpu) for gpu in (0, 1)))
    cluster.ledger.hold("two", "default/two", "a", both)
    cluster.ranks["two"] = Rank(0)
    for narrowed in (False, True):
        found = cluster.plan(asks(4), 5, narrowed=narrowed, nodes=("a",))
        assert found is not None
        assert found.victims == ("two",)


def test_with_too_many_priorities_every_node_is_considered() -> None:
    cluster = Cluster(node("a", 80))
    for priority in range(MOST_CLASSES + 2):
        cluster.put("a", 0, 1, priority)
    found = cluster.plan(asks(48), MOST_CLASSES, narrowed=True, nodes=("a",))
    assert found is not None
    assert found == cluster.plan(asks(48), MOST_CLASSES, narrowed=False, nodes=("a",))
    priorities = Priorities(1, 1)
    priorities.write(0, 0, {0: [1, 2, 3]})
    classes = priorities.below(1, np.array([0]))
    assert classes is not None
    assert [one[:, 0, 0].tolist() for one in classes] == [[1, 2, 3]]


def test_enough_plans_are_compared_and_the_number_of_nodes_tried_is_bounded() -> None:
    names = tuple(f"n{number}" for number in range(MOST_TRIED + 8))
    cluster = Cluster(*(node(name, 16) for name in names))
    for number, name in enumerate(names):
        cluster.put(name, 0, 16 if number else 15, 2 if number < ENOUGH else 1)
    # By the arrays the later nodes come first, and the first has no plan at no cost.
    found = cluster.plan(asks(4), 5, narrowed=True, nodes=names)
    assert found is not None
    assert found.cost[1] == 1
    assert cluster.plan(asks(1), 5, narrowed=True, nodes=names).cost == ()  # type: ignore[union-attr]
    cluster.ranks = dict.fromkeys(cluster.ranks, Rank(9))
    assert cluster.plan(asks(4), 5, narrowed=True, nodes=names) is None
