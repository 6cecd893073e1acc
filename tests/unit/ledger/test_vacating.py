"""The planner of moves gets nodes as the ledger has them, and considers the right ones."""

from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from gpushare.api.node.device import Device, NodeDevices, Placement
from gpushare.api.node.modes import NodeMode
from gpushare.api.quantity import MemoryUnit
from gpushare.ledger import Ledger, Refused
from gpushare.planning.defragmentation import MOST_HOSTS, NO_CAP, Outlook, cheaper_way, outlook
from tests.unit.ledger.ledger_samples import asks, holding, share


def node(name: str, *gib: int, **more: object) -> NodeDevices:
    devices = tuple(Device(index, f"GPU-{name}-{index}", 1024 * size) for index, size in enumerate(gib))
    mode = more.pop("mode", NodeMode.SHARE)
    return NodeDevices(name, mode, MemoryUnit.GIB, devices, **more)  # type: ignore[arg-type]


def ledger(*nodes: NodeDevices, policy: Placement = Placement.BINPACK) -> Ledger:
    made = Ledger(node_policy=policy)
    for one in nodes:
        made.set_node(one)
    return made


def any_pod(uid: str) -> bool:
    return True


def test_a_host_has_its_gpus_with_what_is_free_and_their_pods() -> None:
    made = ledger(node("n", 16, 16, max_pods=3, max_node_pods=5))
    made.reserve("a", "default/a", asks(4), "n")
    made.reserve("b", "default/b", asks(14), "n")
    host = made.evictions.host("n", lambda uid: uid == "a")
    assert host is not None
    assert (host.unit_mib, host.memory_pods, host.core_pods, host.spare_pods) == (1024, 2, 0, 3)
    assert [(gpu.free_units, gpu.free_core, gpu.spare_pods) for gpu in host.gpus] == [
        (12, 100, 2),
        (2, 100, 2),
    ]
    assert [[(pod.key, pod.units, pod.may_move) for pod in gpu.pods] for gpu in host.gpus] == [
        [("a", 4, True)],
        [("b", 14, False)],
    ]
    bare = ledger(node("m", 16)).evictions.host("m", any_pod)
    assert bare is not None
    assert (bare.spare_pods, bare.gpus[0].spare_pods) == (NO_CAP, NO_CAP)


def test_pods_on_several_gpus_or_of_another_unit_do_not_move_and_closed_nodes_take_none() -> None:
    made = ledger(node("n", 16, 16))
    made.reserve("two", "default/two", asks(2, gpus=2), "n")
    old = holding(share("GPU-n-0", 256, units=2, of=128), unit=MemoryUnit.MIB_128)
    made.hold("old", "default/old", "n", old)
    host = made.evictions.host("n", any_pod)
    assert host is not None
    assert {pod.key: pod.may_move for gpu in host.gpus for pod in gpu.pods} == {"two": False, "old": False}
    made.set_node(node("n", 16, 16, refusal="switching"))
    assert made.evictions.host("n", any_pod) is None
    assert made.evictions.host("unknown", any_pod) is None
    made.hold("there", "default/there", "later", holding(share("GPU-later-0", 1024, of=16)))
    assert made.evictions.host("later", any_pod) is None


def test_gpus_out_of_service_are_left_out_and_overcommitment_counts_as_negative() -> None:
    sick = node("n", 16, 16)
    devices = (sick.devices[0], Device(1, "GPU-n-1", 16384, healthy=False))
    made = ledger(NodeDevices("n", NodeMode.SHARE, MemoryUnit.GIB, devices))
    made.hold("a", "default/a", "n", holding(share("GPU-n-0", 16384, units=16, of=16)))
    made.hold("b", "default/b", "n", holding(share("GPU-n-0", 2048, units=2, of=16)))
    host = made.evictions.host("n", any_pod)
    assert host is not None
    (gpu,) = host.gpus
    assert gpu.free_units == -2


def test_nodes_with_enough_free_in_total_are_considered_and_the_smallest_lack_first() -> None:
    made = ledger(
        node("even", 16, 16),
        node("uneven", 16, 16),
        node("full", 16, 16),
        node("core", 16, 16, mode=NodeMode.CORE_MEM),
        node("closed", 16, 16, refusal="switching"),
    )
    for name, first, second in (("even", 12, 12), ("uneven", 10, 14), ("full", 15, 14)):
        made.reserve(f"{name}-1", "default/x", asks(first), name)
        made.hold(f"{name}-2", "default/x", name, holding(share(f"GPU-{name}-1", 1024 * second, second, 16)))
    made.reserve("c", "default/c", asks(12, 10), "core")
    names = ["unknown", "even", "uneven", "full", "core", "closed"]
    assert made.evictions.scattered(asks(8), names) == ["uneven", "even"]
    assert made.evictions.scattered(asks(8, 10), names) == ["core"]
    assert made.evictions.scattered(asks(9), names) == []
    assert made.evictions.roomiest()[:2] == ["core", "uneven"]
    assert "closed" not in made.evictions.roomiest()
    assert (
        len(
            ledger(*(node(f"n{number}", 16, 16) for number in range(MOST_HOSTS + 3))).evictions.scattered(
                asks(8), [f"n{number}" for number in range(MOST_HOSTS + 3)]
            )
        )
        == MOST_HOSTS
    )


def test_nominated_capacity_counts_as_taken() -> None:
    made = ledger(node("n", 16))
    plan = made.evictions.plan(asks(6), ("n",), lambda uid: None)
    assert plan is not None
    made.nominations.add("w", asks(6), plan)
    host = made.evictions.host("n", any_pod)
    assert host is not None
    assert host.gpus[0].free_units == 10


def test_pod_limits_apply_to_moved_pods_and_to_the_pending_pod() -> None:
    """Two GPUs, one pod each of at most two on the node: a move within the node frees no place for another pod."""
    made = ledger(node("n", 16, 16, max_node_pods=2), node("m", 16, max_node_pods=1))
    made.reserve("a", "default/a", asks(9), "n")
    made.hold("b", "default/b", "n", holding(share("GPU-n-1", 4096, 4, 16)))
    hosts = [host for name in ("n", "m") if (host := made.evictions.host(name, any_pod)) is not None]
    assert outlook(hosts[:1], asks(13)) == Outlook(None)
    # The other node takes one pod, the pending one itself.
    assert outlook(hosts, asks(13)).moves == ()
    made.reserve("c", "default/c", asks(5), "m")
    full = [host for name in ("n", "m") if (host := made.evictions.host(name, any_pod)) is not None]
    assert outlook(full, asks(13)) == Outlook(None)
    made.release("c")
    n, m = (host for name in ("n", "m") if (host := made.evictions.host(name, any_pod)) is not None)
    found = cheaper_way(n, [(m, m.gpus[0])], asks(13), Outlook(None))
    assert [(move.pod, move.target.node) for move in found.moves] == [("b", "m")]
    assert cheaper_way(n, [(m, m.gpus[0])], asks(13), found) == found


def test_two_pods_that_fit_elsewhere_singly_but_not_together_do_not_move() -> None:
    made = ledger(node("n", 16, 16), node("m", 16))
    made.reserve("a", "default/a", asks(6), "n")
    made.reserve("b", "default/b", asks(6), "n")
    made.reserve("c", "default/c", asks(9), "n")
    made.reserve("d", "default/d", asks(11), "m")
    n = made.evictions.host("n", lambda uid: uid != "c")
    assert n is not None
    # 4 GiB are free next to the two and 7 next to the third: one of them fits there, the other nowhere.
    assert outlook([n], asks(11)) == Outlook(None)
    assert len(outlook([n], asks(10)).moves) == 1


@given(
    st.sampled_from(list(Placement)),
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 12)), max_size=8),
    st.integers(1, 16),
)
def test_the_best_node_is_the_first_of_those_that_score_highest(
    policy: Placement, placed: list[tuple[str, int]], units: int
) -> None:
    made = ledger(*(node(name, 16, 12) for name in "abc"), policy=policy)
    made.arrived(asks(3))
    for number, (name, size) in enumerate(placed):
        with suppress(Refused):
            made.reserve(str(number), "default/x", asks(size), name)
    names = ["unknown", "a", "b", "c"]
    fits = made.filter(asks(units), names).fits
    points = made.score(asks(units), fits)
    expected = fits[points.index(max(points))] if fits else None
    assert made.best(asks(units), names) == expected
