"""Which pods would have to move for a pending one: enough, to where they fit, and as little as possible."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gpushare.api import names
from gpushare.api.node.modes import NodeMode
from gpushare.api.objects import Node, Pod
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.request import ContainerKind, ContainerRequest, Request
from gpushare.api.request.unit_conversion import Counting, requested_text
from gpushare.inspect.sources.defrag_hosts import hosts_of
from gpushare.inspect.views.allocation_model import ClusterUsage
from gpushare.inspect.views.fragmentation import fragments, fragments_document
from gpushare.planning.defragmentation import (
    LOOKED_AT_ONCE,
    NO_CAP,
    Gpu,
    Host,
    Occupant,
    Outlook,
    cheaper_ways,
    roomiest,
)
from gpushare.planning.defragmentation import outlook as outlook_on
from tests.unit.inspect.clusters import device, node, placed, pod, required, seen
from tests.unit.inspect.schema import faults


def request_of(units: int, core_percent: int = 0) -> Request:
    one = ContainerRequest("main", ContainerKind.APP, 0, units, core_percent)
    return Request(units, core_percent, (one,))


def outlook(cluster: ClusterUsage, request: Request) -> Outlook:
    return outlook_on(list(hosts_of(cluster)), request)


def summary(found: Outlook) -> tuple[str, list[str]]:
    return str(found.spot), [f"{move.pod} to {move.target}" for move in found.moves]


def test_the_cheapest_pod_moves_within_its_node_if_it_can() -> None:
    gpus = [device(0), device(1)]
    pods = [
        placed("nine", "n", gpus[0], 9),
        placed("three", "n", gpus[0], 3),
        placed("eight", "n", gpus[1], 8),
    ]
    cluster = seen(
        [node("n", "10.0.0.1", gpus), node("m", "10.0.0.2", [device(2)])],
        [*pods, placed("full", "m", device(2), 15)],
    )
    # 3 free on one, 7 on the other.
    assert summary(outlook(cluster, request_of(8))) == ("None", [])
    assert summary(outlook(cluster, request_of(6))) == ("GPU 1 of n", [])
    more = [*pods[:2], placed("ten", "n", gpus[1], 10)]
    cluster = seen([node("n", "10.0.0.1", gpus)], more)
    assert summary(outlook(cluster, request_of(6))) == ("GPU 0 of n", ["default/three to GPU 1 of n"])


def test_cordoned_nodes_are_no_targets_and_their_free_memory_does_not_count() -> None:
    gpus = [device(0), device(1)]
    pods = [placed("a", "n", gpus[0], 8), placed("b", "n", gpus[1], 8), placed("c", "m", device(2), 2)]
    nodes = [node("n", "10.0.0.1", gpus), node("m", "10.0.0.2", [device(2)])]
    nodes[1].spec.unschedulable = True
    cluster = seen(nodes, pods)
    assert summary(outlook(cluster, request_of(13))) == ("None", [])
    assert summary(outlook(cluster, request_of(14))) == ("None", [])
    assert fragments_document(cluster, nodes, pods, [])["freeMiB"] == 14 * 1024


def test_mig_instances_are_named_as_in_other_tables() -> None:
    instance = msgspec.structs.replace(device(20), uuid="MIG-a")
    assert summary(outlook(seen([node("n", "10.0.0.1", [instance])], []), request_of(8))) == (
        "GPU 0/4 of n",
        [],
    )


def test_two_pods_move_if_one_is_not_enough_and_to_other_nodes_if_their_own_is_full() -> None:
    gpus = [device(0), device(1)]
    pods = [placed("a", "n", gpus[0], 4), placed("b", "n", gpus[0], 4), placed("big", "n", gpus[1], 9)]
    there = [*pods, placed("other", "m", device(2), 7)]
    cluster = seen([node("n", "10.0.0.1", gpus), node("m", "10.0.0.2", [device(2)])], there)
    # 7 free on one, 6 on the other, 8 elsewhere.
    assert summary(outlook(cluster, request_of(13))) == (
        "GPU 0 of n",
        ["default/a to GPU 1 of n", "default/b to GPU 2 of m"],
    )
    cluster = seen([node("n", "10.0.0.1", gpus), node("m", "10.0.0.2", [device(2)])], pods)
    assert summary(outlook(cluster, request_of(13))) == ("GPU 2 of m", [])


def test_no_move_is_found_if_the_total_does_not_suffice_or_the_kinds_differ() -> None:
    gpus = [device(0), device(1)]
    full = seen([node("n", "10.0.0.1", gpus)], [placed(f"p{one.index}", "n", one, 14) for one in gpus])
    assert outlook(full, request_of(8)) == Outlook(None)
    core = seen(
        [node("n", "10.0.0.1", gpus, mode=NodeMode.CORE_MEM)],
        [placed("p", "n", gpus[0], 1, core_percent=10)],
    )
    assert outlook(core, request_of(2)) == Outlook(None)
    assert outlook(core, request_of(2, 95)).moves == ()
    shut = seen([node("n", "10.0.0.1", gpus, cordoned="0,1")])
    assert outlook(shut, request_of(2)) == Outlook(None)


def test_compute_is_freed_like_memory() -> None:
    gpus = [device(0), device(1)]
    pods = [placed("a", "n", gpus[0], 1, core_percent=50), placed("b", "n", gpus[1], 1, core_percent=50)]
    cluster = seen([node("n", "10.0.0.1", gpus, mode=NodeMode.CORE_MEM)], pods)
    assert summary(outlook(cluster, request_of(2, 60))) == ("GPU 0 of n", ["default/a to GPU 1 of n"])


def test_the_report_names_each_pending_pod_and_the_sums() -> None:
    gpus = [device(0), device(1)]
    pods = [
        placed("nine", "n", gpus[0], 9),
        placed("three", "n", gpus[0], 3),
        placed("ten", "n", gpus[1], 10),
    ]
    nodes = [node("n", "10.0.0.1", gpus)]
    cluster = seen(nodes, pods)
    waiting = [
        pod("six", "", 6),
        pod("two", "", 2),
        pod("huge", "", 14),
        pod("pair", "", 8, labels={"aliyun.com/gpu-count": "2"}),
        pod("odd", "", 8, labels={"aliyun.com/gpu-count": "3"}),
    ]
    text = fragments(cluster, nodes, pods, waiting)
    lines = {line.split()[1]: line for line in text.splitlines()[1:6]}
    assert (
        lines["six"]
        .split(None, 3)[3]
        .startswith("GPU 0 of n  default/three (3) from GPU 0 of n to GPU 1 of n")
    )
    assert lines["two"].endswith("GPU 0 of n  it fits: something else blocks it")
    assert lines["huge"].split()[-2:] == ["-", "-"]
    assert "not a share of one GPU" in lines["pair"]
    assert "equally, in whole units" in lines["odd"]
    assert "1 would fit after moves, 1 is blocked by something other than capacity, 1 would not fit" in text
    # Without pods there are no sums.
    room = "\n\n8 GiB are free on 2 GPUs; the most on one GPU is 5 GiB.\n"
    assert fragments(cluster, nodes, pods, []) == f"No pod that requests GPU memory is pending.{room}"
    assert fragments(cluster, nodes, pods, waiting, namespace="x") == (
        f"No pod that requests GPU memory is pending in namespace x.{room}"
    )
    assert "six" not in fragments(cluster, nodes, pods, waiting, namespace="x")
    document = fragments_document(cluster, nodes, pods, waiting)
    assert faults(document) == []
    entries = {one["name"]: one for one in document["waiting"]}
    assert {name: one["fits"] for name, one in entries.items()} == {
        "six": "once moved",
        "two": "now",
        "huge": "not",
        "pair": "not looked at",
        "odd": "not looked at",
    }
    here, there = {"node": "n", "gpu": 0}, {"node": "n", "gpu": 1}
    assert entries["six"]["goesTo"] == here
    assert entries["six"]["moves"] == [
        {"pod": "default/three", "units": 3, "mib": 3072, "from": here, "to": there}
    ]
    assert (entries["odd"]["asks"], entries["huge"]["goesTo"]) == (None, None)
    assert entries["pair"]["asks"] == {"units": 4, "corePercent": 0, "gpus": 2, "wholeDevice": False}
    assert (document["freeGPUs"], document["freeMiB"], document["largestMiB"]) == (2, 8192, 5120)
    assert fragments_document(cluster, nodes, pods, waiting, namespace="x")["waiting"] == []
    assert fragments_document(seen([]), [], [], [])["largestMiB"] == 0


def waits(name: str, category: str, reason: str) -> dict[str, str]:
    """As in the scheduler's decisions."""
    return {"uid": f"uid-default-{name}", "category": category, "reason": reason}


def test_pods_blocked_by_other_causes_are_counted_separately_with_the_cause() -> None:
    gpus = [device(0), device(1)]
    pods = [
        placed("nine", "n", gpus[0], 9),
        placed("three", "n", gpus[0], 3),
        placed("ten", "n", gpus[1], 10),
    ]
    nodes = [node("n", "10.0.0.1", gpus)]
    decisions = [
        waits("alone", "gang", "gang default/g: 1 of 2 pods are there"),
        waits("held", "quota", "elastic quota a: its max of 4 is used up"),
        waits("huge", "policy", "ResourcePolicy default/p: no unit"),
        waits("late", "memory", "no single GPU has 2 GiB free (every GPU is full)"),
    ]
    waiting = [pod("alone", "", 2), pod("held", "", 6), pod("huge", "", 14), pod("late", "", 2)]

    text = fragments(seen(nodes, pods), nodes, pods, waiting, lambda: decisions)

    lines = {line.split()[1]: line for line in text.splitlines()[1:5]}
    room = "it fits: something else blocks it"
    assert lines["alone"].endswith(f"GPU 0 of n  {room}: gang default/g: 1 of 2 pods are there")
    assert lines["held"].endswith(
        "default/three (3) from GPU 0 of n to GPU 1 of n; something else blocks it, too: "
        "elastic quota a: its max of 4 is used up"
    )
    assert lines["huge"].split()[-2:] == ["-", "-"]
    assert lines["late"].endswith(f"  {room}"), "what it was told of room is no more so"
    assert "0 would fit after moves, 3 are blocked by something other than capacity, 1 would not fit" in text
    document = fragments_document(seen(nodes, pods), nodes, pods, waiting, lambda: decisions)
    assert faults(document) == []
    notes = {one["name"]: (one["fits"], one["note"].partition(": elastic")[0]) for one in document["waiting"]}
    assert notes["held"] == ("once moved", "something else blocks it, too")


def test_the_scheduler_is_not_queried_if_no_move_can_make_room() -> None:
    def decisions() -> list[dict[str, str]]:
        raise AssertionError

    nodes = [node("n", "10.0.0.1", [device(0)])]
    assert "1 would not fit" in fragments(seen(nodes), nodes, [], [pod("huge", "", 99)], decisions)


def test_a_request_for_several_gpus_is_shown_with_its_compute() -> None:
    waiting = pod("a", "", 6, core_percent=30, labels={names.LABEL_POD_APART: "true"})
    (main,) = waiting.spec.containers
    waiting.spec.containers = [main, msgspec.structs.replace(main, name="other")]
    report = fragments(seen([node("n", "10.0.0.1", [device(0)])]), [], [], [waiting])
    assert "2 × 6, 30%" in report


def ways(nodes: list[Node], pods: list[Pod], waiting: Pod) -> tuple[str, list[str]]:
    (entry,) = fragments_document(seen(nodes, pods), nodes, pods, [waiting])["waiting"]
    return entry["fits"], [move["pod"] for move in entry["moves"]]


def test_units_of_another_size_are_not_taken_for_the_nodes_own() -> None:
    gpus, small = [device(0), device(1)], MemoryUnit.MIB_128
    nodes = [node("n", "10.0.0.1", gpus, unit=small)]
    pods = [placed("a", "n", gpus[0], 110, unit=small), placed("b", "n", gpus[1], 112, unit=small)]
    counted = {names.ANN_REQUESTED: requested_text(Counting(MemoryUnit.GIB), {"main": "6Gi"})}
    # 1.25 GiB are free on one GPU and 1 on the other: neither now nor once one has moved.
    assert ways(nodes, pods, pod("waits", "", 6, counted)) == ("not", [])
    assert ways(nodes, pods, pod("waits", "", 6)) == ("now", []), (
        "of the node's own units 6 are less than 1 GiB"
    )
    # Next to it a node that counts in the pod's unit.
    nodes.append(node("m", "10.0.0.2", [device(2)]))
    assert ways(nodes, pods, pod("waits", "", 6, counted)) == ("now", [])


def test_pods_allocated_in_another_unit_do_not_move() -> None:
    gpus = [device(0), device(1)]
    nodes = [node("n", "10.0.0.1", gpus)]
    pods = [placed("old", "n", gpus[0], 48, unit=MemoryUnit.MIB_128), placed("big", "n", gpus[1], 9)]
    # It holds 6 GiB; recreated it would request 48 units again.
    assert ways(nodes, pods, pod("waits", "", 12)) == ("once moved", ["default/big"])
    pods[0] = placed("new", "n", gpus[0], 6)
    assert ways(nodes, pods, pod("waits", "", 12)) == ("once moved", ["default/new"])


def test_nodes_outside_a_pods_selection_are_no_targets() -> None:
    nodes = [node("n", "10.0.0.1", [device(0), device(2)]), node("m", "10.0.0.2", [device(1)])]
    pods = [placed("full", "n", device(0), 8), placed("other", "n", device(2), 8)]
    wants_n = {"kubernetes.io/hostname": "n"}
    for one in nodes:
        assert one.metadata.labels is not None
        one.metadata.labels["kubernetes.io/hostname"] = one.metadata.name
    assert ways(nodes, pods, pod("waits", "", 12)) == ("now", [])
    # There it fits once the other has moved to the node that it does not want itself.
    assert ways(nodes, pods, pod("waits", "", 12, node_selector=wants_n)) == (
        "once moved",
        ["default/full"],
    )
    assert ways(nodes, pods, pod("waits", "", 12, node_selector={"pool": "x"})) == ("not", [])
    term = {
        "matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n", "m"]}]
    }
    assert ways(nodes, pods, pod("waits", "", 12, affinity=required(term))) == ("not", [])


def test_no_pod_moves_to_a_node_that_it_does_not_want() -> None:
    nodes = [node("n", "10.0.0.1", [device(0), device(2)]), node("m", "10.0.0.2", [device(1)])]
    for one in nodes:
        assert one.metadata.labels is not None
        one.metadata.labels["kubernetes.io/hostname"] = one.metadata.name
    # 7 are free on both GPUs of n, 9 on the one of m: a pod that makes room for 12 units on n has to go to m.
    pods = [
        placed("full", "n", device(0), 8),
        placed("other", "n", device(2), 8),
        placed("there", "m", device(1), 6),
    ]
    waiting = pod("waits", "", 12, node_selector={"kubernetes.io/hostname": "n"})
    assert ways(nodes, pods, waiting) == ("once moved", ["default/full"])
    pods[0].spec.node_selector = {"kubernetes.io/hostname": "n"}
    assert ways(nodes, pods, waiting) == ("once moved", ["default/other"])
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["m"]}]}
    pods[1].spec.affinity = required(term)
    assert ways(nodes, pods, waiting) == ("not", [])
    # On its own node every pod may move.
    pods[2] = placed("there", "m", device(1), 15)
    pods[1] = placed("other", "n", device(2), 7)
    assert ways(nodes, pods, pod("waits", "", 15)) == ("once moved", ["default/other"])
    pods[0], pods[1] = placed("full", "n", device(0), 7), pods[1]
    pods[0].spec.node_selector = {"kubernetes.io/hostname": "n"}
    assert ways(nodes, [pods[0], placed("other", "n", device(2), 8), pods[2]], pod("w", "", 15)) == (
        "once moved",
        ["default/full"],
    )


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), max_size=8),
    st.integers(1, 15),
)
def test_after_the_moves_everything_fits(pods: list[tuple[int, int]], units: int) -> None:
    gpus = {0: device(0), 1: device(1), 2: device(2), 3: device(3)}
    names = {0: "n", 1: "n", 2: "m", 3: "m"}
    used = dict.fromkeys(gpus, 0)
    there = []
    for number, (gpu, size) in enumerate(pods):
        if used[gpu] + size <= 15:
            used[gpu] += size
            there.append(placed(f"p{number}", names[gpu], gpus[gpu], size))
    cluster = seen(
        [node("n", "10.0.0.1", [gpus[0], gpus[1]]), node("m", "10.0.0.2", [gpus[2], gpus[3]])], there
    )
    found = outlook(cluster, request_of(units))
    if found.spot is None:
        assert all(15 - one < units for one in used.values())
        return
    for move in found.moves:
        used[move.source.gpu] -= move.units
        used[move.target.gpu] += move.units
    used[found.spot.gpu] += units
    assert all(one <= 15 for one in used.values())
    assert bool(found.moves) is (not any(15 - one >= units for one in _before(used, found, units).values()))


def _before(used: dict[int, int], found: Outlook, units: int) -> dict[int, int]:
    before = dict(used)
    assert found.spot is not None
    before[found.spot.gpu] -= units
    for move in found.moves:
        before[move.source.gpu] += move.units
        before[move.target.gpu] -= move.units
    return before


def test_a_node_with_many_pods_is_not_examined_in_one_go() -> None:
    pods = tuple(Occupant(f"p{number}", 10 + number, 10240, 0) for number in range(20))
    host = Host("n", 1024, (Gpu(0, 1, 100, NO_CAP, pods),), False, 20, 0)
    # Each single pod has a target and is not enough; no two of them have.
    (place,) = roomiest([Host("m", 1024, (Gpu(0, 29, 100, 1, ()),), False, 0, 0)])
    best = list(cheaper_ways(host, [place], request_of(31), Outlook(None)))
    assert best[-1] == Outlook(None)
    assert len(best) > 150 / LOOKED_AT_ONCE, "of 190 pairs more than 150 are enough"


def test_identical_pods_are_examined_once() -> None:
    identical = tuple(Occupant(f"p{number}", 2, 2048, 0) for number in range(40))
    host = Host("n", 1024, (Gpu(0, 0, 100, NO_CAP, identical),), False, 40, 0)
    (place,) = roomiest([Host("m", 1024, (Gpu(0, 2, 100, NO_CAP, ()),), False, 0, 0)])
    # One of them has a target and is not enough; of 780 pairs one shows for all that there is none.
    best = list(cheaper_ways(host, [place], request_of(4), Outlook(None)))
    assert (set(best), len(best) < 780 / LOOKED_AT_ONCE) == ({Outlook(None)}, True)
    *_, found = cheaper_ways(host, [place], request_of(2), Outlook(None))
    assert [move.pod for move in found.moves] == ["p0"]
