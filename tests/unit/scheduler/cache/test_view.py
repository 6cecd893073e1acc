"""Informer events become holdings, waiting pods and nodes, in any order."""

from gpushare.api import names
from gpushare.api.node.device import NodeDevices, devices_annotation
from gpushare.api.node.modes import NodeMode
from gpushare.api.objects import Node, Pod, decode_node, decode_pod
from gpushare.api.quantity import MemoryUnit
from gpushare.scheduler.cache.cache import NodeReader, NodeRecord
from gpushare.scheduler.cache.pod_records import PodRecord, record_of
from tests.unit.scheduler.world import World, gpu_node, pod_object

FOREIGN = {names.ANN_MEM_INDEX: "0", names.ANN_MEM_POD: "4", names.ANN_MEM_DEVICE: "16"}


def test_pods_without_gpu_requests_are_not_kept(world: World) -> None:
    world.create("plain")
    world.create("elsewhere", node="n1")
    assert world.view.waiting == {}


def test_a_waiting_pod_is_tracked_until_it_is_bound_finished_or_gone(world: World) -> None:
    pod = world.create("a", 4)
    assert list(world.view.waiting) == [pod.metadata.uid]
    world.create("a", 4, phase="Failed")
    assert world.view.waiting == {}


def test_a_foreign_pod_counts_once_its_node_is_known_and_when_its_gpus_change(world: World) -> None:
    world.create("f", 4, node="late", annotations=FOREIGN)
    assert world.ledger.held("uid-f") is None
    world.add_node(gpu_node("late", 16384))
    assert world.used_mib("late") == [4096]
    world.add_node(gpu_node("late", 32768))
    assert world.used_mib("late") == [8192]  # 4 of 16 parts of a GPU twice the size
    world.create("f", 4, node="late", annotations=FOREIGN, phase="Succeeded")
    assert world.used_mib("late") == [0]
    world.add_node(gpu_node("late", 16384))
    assert world.used_mib("late") == [0]


def test_malformed_annotations_are_reported_once_and_never_guessed(world: World) -> None:
    for _ in range(3):
        world.create("m", 4, node="n1", annotations={names.ANN_SHARE: "{"})
        world.create("w", 4, node="n1", annotations={names.ANN_MEM_INDEX: "7", names.ANN_MEM_POD: "4"})
    assert world.used_mib("n1") == [0]
    assert [(name, reason) for name, reason, _ in world.events.notes] == [
        ("m", "MalformedGPUAllocation"),
        ("w", "MalformedGPUAllocation"),
    ]
    assert "names GPU 7, which node n1 does not have" in world.events.notes[1][2]
    assert set(world.view.malformed) == {"pod default/m", "pod default/w"}
    world.create("m", 4, node="n1", annotations=FOREIGN)
    world.view.remove_pod(record_of_pod("w"))
    assert world.view.malformed == {}


def record_of_pod(name: str) -> PodRecord:
    record = record_of(decode_pod(pod_object(name, 4, node="n1", annotations=FOREIGN)))
    assert record is not None
    return record


def test_an_invalid_request_is_an_event(world: World) -> None:
    world.create("bad", core=30)
    assert world.events.notes[0][:2] == ("bad", "InvalidGPURequest")
    assert "without aliyun.com/gpu-mem" in world.events.notes[0][2]


def test_a_late_event_of_an_unbound_pod_does_not_undo_its_binding(world: World) -> None:
    world.create("a", 4, node="n1", annotations=FOREIGN)
    record = record_of_pod("a")
    stale = record_of(_unbound("a"))
    assert stale is not None
    world.view.upsert_pod(stale)
    assert world.used_mib("n1") == [4096]
    world.view.remove_pod(record)
    assert world.used_mib("n1") == [0]


def _unbound(name: str) -> Pod:
    return decode_pod(pod_object(name, 4))


def node_object(labels: dict[str, str], annotation: str | None = None) -> Node:
    annotations = {} if annotation is None else {names.ANN_DEVICES: annotation}
    return decode_node({"metadata": {"name": "n9", "labels": labels, "annotations": annotations}})


def test_an_unreadable_node_takes_nothing_and_gives_the_reason(world: World) -> None:
    reader = NodeReader(unit=MemoryUnit.GIB, isolated_cap=16)
    bad = reader.read(node_object({names.LABEL_MODE: "shared"}))
    for _ in range(2):
        world.view.upsert_node(bad)
    assert [(name, reason) for name, reason, _ in world.events.notes] == [("n9", "UnknownGPUMode")]
    good = reader.read(
        node_object(
            {names.LABEL_MODE: "cgpu"},
            devices_annotation(NodeMode.CGPU, MemoryUnit.GIB, gpu_node("n9", 16384).devices),
        )
    )
    world.view.upsert_node(good)
    assert world.view.malformed == {}
    assert world.ledger.node("n9") == good.devices
    assert good.devices.max_pods == 16
    world.view.remove_node("n9")
    assert world.ledger.node("n9") is None


def test_a_node_without_gpus_is_known_and_takes_nothing(world: World) -> None:
    plain = NodeReader(unit=MemoryUnit.GIB, isolated_cap=16).read(node_object({}))
    assert plain == NodeRecord(NodeDevices("n9", NodeMode.DEFAULT, MemoryUnit.GIB, ()), "")


def test_each_mistake_on_a_node_is_one_event_with_the_same_name_from_every_component(
    world: World,
) -> None:
    reader = NodeReader(unit=MemoryUnit.GIB, isolated_cap=16)
    mistakes = {names.LABEL_MODE: "shared", names.LABEL_PLACEMENT: "sprad"}

    def shown(labels: dict[str, str]) -> list[tuple[str, str]]:
        before = len(world.events.notes)
        world.view.upsert_node(reader.read(node_object(labels)))
        recorded = world.events.recorded[before:]
        return [(reason, occurrence) for reason, _, occurrence in recorded]

    assert shown(mistakes) == [("UnknownGPUMode", "lasting"), ("InvalidGPULabel", "lasting")]
    assert shown(mistakes) == []
    # One is corrected; the other is not reported as new.
    assert shown({names.LABEL_PLACEMENT: "sprad"}) == []
    assert shown(mistakes) == [("UnknownGPUMode", "began")]
    causes = [cause for _, cause, _ in world.events.recorded]
    assert (
        causes[0]
        == causes[2]
        == "label ack.node.gpu.schedule=shared is unknown; use one of default, share, cgpu, core_mem, mps, topology, dra"
    )
    assert shown({}) == []
    assert shown({names.LABEL_PLACEMENT: "sprad"}) == [("InvalidGPULabel", "began")]


def test_an_event_is_named_by_the_mistake_on_the_node(world: World) -> None:
    reader = NodeReader(unit=MemoryUnit.GIB, isolated_cap=16)
    node = node_object({names.LABEL_MODE: "share", names.LABEL_MAX_PODS: "many"})
    node.metadata.annotations = {**(node.metadata.annotations or {}), names.ANN_CORDONED: "first"}
    world.view.upsert_node(reader.read(node))
    assert [reason for reason, _, _ in world.events.recorded] == ["InvalidGPULabel", "InvalidGPUCordon"]
