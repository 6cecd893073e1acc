"""Inputs of placement by fragmentation come from pods and nodes: arrivals, and free processors."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.api import names
from gpushare.api.allocation.annotations import Stamp, allocation_annotations
from gpushare.api.node.device import Device, Placement, devices_annotation
from gpushare.api.node.modes import NodeMode
from gpushare.api.objects import Node, NodeStatus, ObjectMeta, decode_pod
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.request import cpu_milli_of
from gpushare.ledger import Ledger
from gpushare.ledger.node_book import UNKNOWN_CPU_MILLI
from gpushare.ledger.placement.fragmentation.workload_mix import ARRIVAL, Kind
from gpushare.scheduler.cache.cache import ClusterCache, NodeReader
from gpushare.scheduler.cache.cpu import CpuUsage
from gpushare.scheduler.cache.pod_records import counted_record_of
from tests.unit.scheduler.world import Recorded, pod_object

FRAGMENTATION = Placement.FRAGMENTATION


def view() -> ClusterCache:
    return ClusterCache(Ledger(node_policy=FRAGMENTATION), Recorded(), lambda uid: None)


def node_object(name: str = "n1", cpu: str | None = "8", labels: dict[str, str] | None = None) -> Node:
    devices = (Device(0, "GPU-a", 16384), Device(1, "GPU-b", 16384))
    return Node(
        ObjectMeta(
            name=name,
            labels={names.LABEL_MODE: "share", **(labels or {})},
            annotations={names.ANN_DEVICES: devices_annotation(NodeMode.SHARE, MemoryUnit.GIB, devices)},
        ),
        status=NodeStatus(allocatable=None if cpu is None else {"cpu": cpu}),
    )


def reader(policy: Placement = FRAGMENTATION) -> NodeReader:
    return NodeReader(unit=MemoryUnit.GIB, isolated_cap=16, node_policy=policy)


def pod(name: str, mem: int | None = None, cpu: Any = None, **where: Any) -> dict[str, Any]:
    made = pod_object(name, mem, **where)
    if cpu is not None:
        made["spec"]["containers"][0]["resources"]["requests"] = {"cpu": cpu}
    return made


def seen(view: ClusterCache, made: dict[str, Any]) -> None:
    record = counted_record_of(decode_pod(made))
    assert record is not None
    view.upsert_pod(record)


def free_cpu(view: ClusterCache, name: str = "n1") -> int:
    columns, place = view.ledger.columns_by_node()
    return int(columns.free_cpu_milli[place[name]])


def weights(view: ClusterCache) -> dict[Kind, int]:
    return view.ledger._growth._mix.weights


def test_every_bound_pod_takes_its_processors_until_it_is_gone() -> None:
    world = view()
    seen(world, pod("early", cpu="1500m", node="n1"))
    world.upsert_node(reader().read(node_object()))
    assert free_cpu(world) == 6500
    seen(world, pod("later", mem=4, cpu=2, node="n1"))
    assert free_cpu(world) == 4500
    seen(world, pod("early", cpu="1500m", node="n1", phase="Succeeded"))
    assert free_cpu(world) == 6000
    seen(world, pod("greedy", cpu=100, node="n1"))
    assert free_cpu(world) == 0
    world.upsert_node(reader().read(node_object(cpu="200")))
    assert free_cpu(world) == 98_000


def test_a_node_that_comes_back_has_the_processors_left_by_its_pods() -> None:
    world = view()
    world.upsert_node(reader().read(node_object()))
    seen(world, pod("a", cpu=3, node="n1"))
    world.remove_node("n1")
    world.upsert_node(reader().read(node_object()))
    assert free_cpu(world) == 5000


def test_under_any_other_policy_processors_are_not_counted() -> None:
    world = view()
    world.upsert_node(reader(Placement.BINPACK).read(node_object()))
    assert free_cpu(world) == UNKNOWN_CPU_MILLI
    world.upsert_node(reader().read(node_object("n2", cpu=None)))
    assert free_cpu(world, "n2") == UNKNOWN_CPU_MILLI


def test_nodes_without_a_label_choose_gpus_as_nodes_are_chosen() -> None:
    def placement(policy: Placement, **labels: str) -> Placement:
        return reader(policy).read(node_object(labels=labels)).devices.placement

    assert placement(FRAGMENTATION) is FRAGMENTATION
    assert placement(Placement.SPREAD) is Placement.SPREAD
    assert placement(Placement.BINPACK) is Placement.BINPACK
    assert placement(Placement.SPREAD, **{names.LABEL_PLACEMENT: "binpack"}) is Placement.BINPACK
    assert placement(FRAGMENTATION, **{names.LABEL_PLACEMENT: "binpack"}) is Placement.BINPACK
    assert placement(Placement.BINPACK, **{names.LABEL_PLACEMENT: "fragmentation"}) is FRAGMENTATION


def test_an_arrival_counts_once_however_often_it_is_reported() -> None:
    world = view()
    for _ in range(3):
        seen(world, pod("a", mem=4, cpu="500m"))
    assert weights(world) == {Kind(1, 4, 0, 500): ARRIVAL}
    annotations = {names.ANN_MEM_INDEX: "0", names.ANN_MEM_POD: "4", names.ANN_MEM_DEVICE: "16"}
    world.upsert_node(reader().read(node_object()))
    for _ in range(2):
        seen(world, pod("a", mem=4, cpu="500m", node="n1", annotations=annotations))
    seen(world, pod("b", mem=6))
    assert weights(world) == {Kind(1, 4, 0, 500): ARRIVAL, Kind(1, 6): ARRIVAL}


def test_after_a_restart_running_pods_provide_the_arrivals() -> None:
    world = view()
    world.upsert_node(reader().read(node_object()))
    annotations = {names.ANN_MEM_INDEX: "0", names.ANN_MEM_POD: "4", names.ANN_MEM_DEVICE: "16"}
    for _ in range(2):
        seen(world, pod("old", mem=4, cpu=2, node="n1", annotations=annotations))
    assert weights(world) == {Kind(1, 4, 0, 2000): ARRIVAL}


def test_a_request_for_whole_gpus_is_the_same_before_and_after_a_restart() -> None:
    labels = {names.LABEL_POD_PLACEMENT: names.POD_PLACEMENT_WHOLE_DEVICE}
    before = view()
    before.upsert_node(reader().read(node_object()))
    made = pod("a", mem=4, cpu=1, labels=labels)
    seen(before, made)
    record = before.waiting["uid-a"]
    assert record.request is not None
    allocation = before.ledger.reserve(record.uid, record.pod, record.request, "n1")
    annotations = allocation_annotations(allocation, record.request, Stamp(1, assigned=True))
    after = view()
    after.upsert_node(reader().read(node_object()))
    seen(after, pod("a", mem=4, cpu=1, labels=labels, node="n1", annotations=dict(annotations)))
    assert weights(before) == weights(after) == {Kind(1, 4, 0, 1000, whole=True): ARRIVAL}


def test_a_label_added_after_the_share_does_not_make_it_a_whole_gpu() -> None:
    world = view()
    world.upsert_node(reader().read(node_object()))
    labels = {names.LABEL_POD_PLACEMENT: names.POD_PLACEMENT_WHOLE_DEVICE}
    annotations = {names.ANN_MEM_INDEX: "0", names.ANN_MEM_POD: "4", names.ANN_MEM_DEVICE: "16"}
    seen(world, pod("a", mem=4, labels=labels, node="n1", annotations=annotations))
    assert weights(world) == {Kind(1, 4): ARRIVAL}


def test_an_invalid_amount_of_processors_is_none() -> None:
    for cpu, milli in (("1", 1000), (2, 2000), ("0.0001", 1), ("-1", 0), ("many", 0), ("1e3", 1_000_000)):
        assert cpu_milli_of(decode_pod(pod("a", cpu=cpu))) == milli
    assert cpu_milli_of(decode_pod(pod("a"))) == 0
    only_limit = pod_object("a")
    only_limit["spec"]["containers"][0]["resources"]["limits"] = {"cpu": "2"}
    assert cpu_milli_of(decode_pod(only_limit)) == 2000


def test_a_pod_with_more_processors_than_exist_anywhere_is_placed_all_the_same() -> None:
    """Whether it fits is up to kube-scheduler."""
    world = view()
    world.upsert_node(reader().read(node_object()))
    record = counted_record_of(decode_pod(pod("a", mem=4, cpu="9e300")))
    assert record is not None
    world.upsert_pod(record)
    assert record.request is not None
    assert world.ledger.score(record.request, ["n1"]) == [10]
    assert world.ledger.reserve("a", "a", record.request, "n1").units == 4


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(("take", "take", "release", "node", "gone")),
            st.sampled_from("abcd"),
            st.sampled_from(("n1", "n2")),
            st.sampled_from((0, 100, 2500)),
        )
    )
)
@settings(max_examples=100, deadline=None)
def test_free_processors_are_those_not_used_by_the_pods_of_a_node(
    steps: list[tuple[str, str, str, int]],
) -> None:
    free_cpu: dict[str, int] = {}
    processors = CpuUsage(free_cpu.__setitem__)
    nodes: dict[str, int] = {}
    pods: dict[str, tuple[str, int]] = {}
    for what, uid, name, milli in steps:
        if what == "take":
            processors.take(uid, name, milli)
            pods[uid] = (name, milli)
        elif what == "release":
            processors.release(uid)
            pods.pop(uid, None)
        elif what == "node":
            processors.set_node(name, milli * 10)
            nodes[name] = milli * 10
        else:
            processors.remove_node(name)
            nodes.pop(name, None)
        for known, allocatable in nodes.items():
            taken = sum(amount for node, amount in pods.values() if node == known)
            assert free_cpu[known] == max(allocatable - taken, 0)
