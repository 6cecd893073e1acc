"""No text in an object or a body ends the process: unreadable ones are refused with a message, and the rest continues."""

import json

import pytest

from gpushare.api import names
from gpushare.api.allocation.annotations import read_allocation
from gpushare.api.errors import MalformedAllocation, MalformedDevices
from gpushare.api.node.device import node_devices
from gpushare.api.objects import decode_node
from gpushare.api.quantity import MemoryUnit
from gpushare.scheduler.cache.cache import NodeReader
from gpushare.scheduler.cache.pod_records import decode_record
from gpushare.scheduler.framework.cycle import filter_nodes
from gpushare.scheduler.framework.cycle_state import Bodies
from gpushare.scheduler.server import protocol
from tests.unit.scheduler.world import World, gpu_node, pod_object

#: JSON nested deeper than any decoder goes, well below the 256 KiB that annotations may have.
DEEP = '{"x":' + "[" * 100_000 + "]" * 100_000 + "}"
HOSTILE = [
    DEEP,
    '{"version":' + "9" * 4000 + "}",
    "\x00",
    "９",
    '{"０":{"0":1}}',
    '{"0":{"0_0":1}}',
    "[]",
    "null",
    "",
]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("name", [names.ANN_SHARE, names.ANN_ALLOCATION, names.ANN_MEM_INDEX, names.ANN_CORE])
def test_no_annotation_of_a_pod_ends_the_watch(world: World, name: str, text: str) -> None:
    annotations = {names.ANN_ALLOCATION: '{"0":{"0":1}}', name: text}
    decoded = decode_record(json.dumps(pod_object("p", 1, node="n1", annotations=annotations)).encode())
    assert decoded is not None
    world.view.upsert_pod(decoded[1])
    assert world.used_mib("n1") == [0]
    assert [reason for _, reason, _ in world.events.notes] == ["MalformedGPUAllocation"]


def test_no_annotation_or_label_of_a_node_ends_the_watch(world: World) -> None:
    decode = NodeReader(unit=MemoryUnit.GIB, isolated_cap=16).decode
    for text in HOSTILE:
        for labels, annotations in (
            ({}, {names.ANN_DEVICES: text}),
            (
                {names.LABEL_MAX_PODS: text},
                {names.ANN_DEVICES: '{"version":1,"unit":"1GiB","mode":"share","gpus":[]}'},
            ),
        ):
            node = {"metadata": {"name": "n9", "labels": labels, "annotations": annotations}}
            _, record = decode(json.dumps(node).encode())
            world.view.upsert_node(record)
            assert record.problem or text == "９"
            assert record.devices.devices == ()


def test_texts_nested_too_deep_are_reported_as_such() -> None:
    with pytest.raises(
        MalformedAllocation, match=r"pod default/p: annotation gpushare\.dev/allocation cannot be read"
    ):
        read_allocation({names.ANN_SHARE: DEEP}, None, "pod default/p")
    with pytest.raises(MalformedAllocation, match="is not JSON of the form"):
        read_allocation({names.ANN_ALLOCATION: DEEP}, gpu_node("n1", 16384), "pod default/p")
    with pytest.raises(MalformedDevices, match=r"node n9: annotation gpushare\.dev/devices cannot be read"):
        node_devices(decode_node({"metadata": {"name": "n9", "annotations": {names.ANN_DEVICES: DEEP}}}))


@pytest.mark.parametrize(
    "body",
    [
        DEEP.encode(),
        b'{"Pod":{"metadata":{"name":"\xff"}},"NodeNames":["n1"]}',
        b'{"Pod":{},"Nodes":{"items":[{}]}}',
        b'{"Pod":{},"Nodes":{"items":[{"metadata":{"name":7}}]}}',
        b'{"Pod":{},"Nodes":{"items":[{"metadata":{"name":"\xff"}}]}}',
    ],
)
def test_an_unreadable_body_is_refused_as_one(world: World, body: bytes) -> None:
    with pytest.raises(protocol.WireError, match="not an ExtenderArgs object"):
        filter_nodes(world.view, Bodies().read(body), world.framework())


@pytest.mark.parametrize("body", [DEEP.encode(), b'{"PodNamespace":"\xff"}'])
def test_an_unreadable_binding_is_refused_as_one(body: bytes) -> None:
    with pytest.raises(protocol.WireError, match="not an ExtenderBindingArgs object"):
        protocol.read_binding(body)


def test_an_empty_list_of_nodes_is_valid(world: World) -> None:
    body = json.dumps({"Pod": pod_object("a", 1), "Nodes": {"metadata": {}, "items": None}}).encode()
    assert (
        json.loads(filter_nodes(world.view, Bodies().read(body), world.framework()))["Nodes"]["items"] == []
    )
