"""Which node, and which of its GPUs, a pod gets."""

import msgspec
import pytest

from gpushare.api.allocation.allocation import GpuShare
from gpushare.api.node.device import Placement
from gpushare.api.node.modes import NodeMode
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.request import ContainerKind, ContainerRequest, Request
from gpushare.ledger import Held, Ledger, Refused
from tests.unit.ledger.ledger_samples import A100, T4, V100, asks, node


def placed(ledger: Ledger, uid: str, request: Request, on: str = "n1") -> int:
    """The index of the pod's GPU."""
    return ledger.reserve(uid, f"default/{uid}", request, on).gpus[0].index


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


def test_three_pods_with_30_percent_share_one_gpu_of_four() -> None:
    ledger = Ledger()
    ledger.set_node(node("n1", V100, V100, V100, V100, mode=NodeMode.CORE_MEM))
    assert [placed(ledger, f"p{n}", asks(2, 30)) for n in range(4)] == [0, 0, 0, 1]
    usage = ledger.usage("n1").gpus[0]
    assert (usage.used_core, usage.used_mib, usage.used_units, usage.free_mib) == (90, 6462, 6, 9698)


def test_the_fuller_node_scores_higher_under_binpack() -> None:
    ledger = Ledger()
    for name in ("n1", "n2", "n3"):
        ledger.set_node(node(name, 10 * 1024))
    placed(ledger, "a", asks(8), "n1")
    placed(ledger, "b", asks(3), "n2")
    names = ["n3", "n2", "n1", "unknown"]
    assert ledger.score(asks(2), names) == [0, 5, 10, 0]
    assert ledger.score(asks(3), names) == [0, 10, 0, 0]
    assert ledger.score(asks(20), names) == [0, 0, 0, 0]


def test_the_emptier_node_scores_higher_under_spread() -> None:
    ledger = Ledger(node_policy=Placement.SPREAD)
    for name in ("n1", "n2", "n3"):
        ledger.set_node(node(name, 10 * 1024))
    placed(ledger, "a", asks(8), "n1")
    placed(ledger, "b", asks(3), "n2")
    assert ledger.score(asks(2), ["n3", "n2", "n1"]) == [10, 5, 0]


def test_a_difference_that_is_small_next_to_the_largest_gpu_still_counts() -> None:
    ledger = Ledger()
    for name in ("n1", "n2", "n3"):
        ledger.set_node(node(name, A100, unit=MemoryUnit.MIB_128))
    placed(ledger, "a", asks(101), "n1")
    placed(ledger, "b", asks(100), "n2")
    assert ledger.score(asks(64), ["n1", "n2", "n3"]) == [10, 5, 0]


@pytest.mark.parametrize(("policy", "points"), [(Placement.BINPACK, [10, 10]), (Placement.SPREAD, [0, 10])])
def test_of_nodes_with_equal_free_gpus_spread_takes_the_one_with_fewer_pods(
    policy: Placement, points: list[int]
) -> None:
    ledger = Ledger(node_policy=policy)
    for name in ("begun", "empty"):
        ledger.set_node(node(name, T4, T4, placement=policy))
    placed(ledger, "a", asks(15), "begun")
    assert ledger.score(asks(4), ["begun", "empty"]) == points


@pytest.mark.parametrize("policy", [Placement.BINPACK, Placement.SPREAD])
def test_pods_with_memory_only_close_no_node_to_compute_while_another_has_room(policy: Placement) -> None:
    ledger = Ledger(node_policy=policy)
    ledger.set_node(node("core", T4, mode=NodeMode.CORE_MEM, placement=policy))
    worse = A100 if policy is Placement.BINPACK else 6 * 1024
    ledger.set_node(node("cgpu", worse, placement=policy))
    assert ledger.score(asks(4), ["core", "cgpu"]) == [0, 10]
    assert ledger.score(asks(4), ["core"]) == [10]
    ledger.set_node(node("core-2", T4, mode=NodeMode.CORE_MEM, placement=policy))
    assert ledger.score(asks(4, 5), ["core", "cgpu", "core-2"]) == [10, 0, 10]
    placed(ledger, "a", asks(1), "core")
    # It is closed already: nothing more is lost.
    assert ledger.score(asks(4), ["core", "cgpu", "core-2"]) == [10, 5, 0]


def test_a_cordoned_gpu_takes_no_new_pods_and_keeps_those_it_has() -> None:
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
    expected = r"node already has 2 pods on its GPUs, the maximum \(label gpushare.dev/max-pods-per-node\)"
    for request in (asks(1), asks(1, gpus=2), asks(1, whole=True)):
        with pytest.raises(Refused, match=expected) as refused:
            placed(ledger, "c", request)
        assert not refused.value.hopeless
    ledger.release("a")
    placed(ledger, "c", asks(1))
    ledger.set_node(node("n1", T4, T4))
    placed(ledger, "d", asks(1))
