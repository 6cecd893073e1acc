"""IDs identify their GPU, whatever its current index."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.api import names
from gpushare.api.node.device import Device, NodeDevices
from gpushare.api.node.modes import MODES, NodeMode
from gpushare.api.quantity import MemoryUnit
from gpushare.kubeletapi import MAX_MESSAGE_BYTES
from gpushare.kubeletapi.deviceplugin_pb2 import ListAndWatchResponse
from gpushare.nodeagent.deviceplugin.device_ids import MAX_ID_LENGTH, DeviceIds, in_order
from gpushare.nodeagent.deviceplugin.device_lists import device_list
from gpushare.nodeagent.errors import UnknownDeviceId
from gpushare.nodeagent.modes.rules import rules_of
from gpushare.nodeagent.modes.shares import CORE, MEMORY
from gpushare.nodeagent.modes.whole_gpus import WHOLE

hexadecimal = st.text("0123456789abcdef", min_size=12, max_size=12)
#: UUIDs that differ early, late, or almost not at all.
uuids = st.builds(
    lambda head, tail: f"GPU-{head}-1111-2222-3333-{tail}",
    st.sampled_from(["5a1f8c1e", "5a1f8c1f", "00000000"]),
    hexadecimal,
)
nodes = st.lists(uuids, min_size=1, max_size=8, unique=True).map(
    lambda found: [Device(index, uuid, 15360) for index, uuid in enumerate(found)]
)


def all_ids(ids: DeviceIds, device: Device) -> list[str]:
    return [*ids.memory_ids(device, MemoryUnit.MIB_128), *ids.core_ids(device), ids.whole_id(device)]


@given(nodes)
def test_every_id_maps_back_to_its_gpu_and_is_unique(devices: list[Device]) -> None:
    ids = DeviceIds(devices)
    seen: set[str] = set()
    for device in devices:
        own = all_ids(ids, device)
        assert {ids.gpu_of(one) for one in own} == {device.uuid}
        assert max(map(len, own)) <= MAX_ID_LENGTH
        assert seen.isdisjoint(own)
        seen.update(own)


@given(nodes, st.randoms(use_true_random=False))
def test_ids_do_not_depend_on_the_order_of_the_gpus(devices: list[Device], rng: random.Random) -> None:
    shuffled = [
        Device(at, one.uuid, one.total_mib) for at, one in enumerate(rng.sample(devices, len(devices)))
    ]
    before, after = DeviceIds(devices), DeviceIds(shuffled)
    assert all(all_ids(before, one) == all_ids(after, one) for one in devices)


@given(nodes, uuids)
def test_ids_from_before_another_gpu_came_are_understood_or_refused_never_mistaken(
    devices: list[Device], uuid: str
) -> None:
    before, after = DeviceIds(devices), DeviceIds([*devices, Device(99, uuid, 15360)])
    for device in devices:
        for one in all_ids(before, device):
            try:
                assert after.gpu_of(one) == device.uuid
            except UnknownDeviceId:
                assert uuid not in {one.uuid for one in devices}


def test_eight_characters_of_the_uuid_are_enough_as_a_rule() -> None:
    device = Device(0, "GPU-5a1f8c1e-7c1f-4a8e-9d3b-000000000001", 16160)
    ids = DeviceIds([device])
    assert ids.memory_ids(device, MemoryUnit.GIB)[:2] == ["5a1f8c1e-0", "5a1f8c1e-8"]
    assert len(ids.memory_ids(device, MemoryUnit.GIB)) == 15
    assert ids.core_ids(device)[-1] == "5a1f8c1e-c99"
    assert ids.whole_id(device) == "5a1f8c1e-g"


@given(st.integers(1, 200_000))
def test_ids_of_the_large_unit_are_some_of_those_of_the_small(total_mib: int) -> None:
    device = Device(0, "GPU-5a1f8c1e", total_mib)
    ids = DeviceIds([device])
    assert set(ids.memory_ids(device, MemoryUnit.GIB)) <= set(ids.memory_ids(device, MemoryUnit.MIB_128))


@pytest.mark.parametrize("foreign", ["", "x", "5a1f-3", "ffffffff-3", "-3", "GPU-0-1"])
def test_unknown_ids_are_refused(foreign: str) -> None:
    with pytest.raises(UnknownDeviceId):
        DeviceIds([Device(0, "GPU-5a1f8c1e-7c1f", 16160)]).gpu_of(foreign)


def test_ids_are_ordered_by_their_place() -> None:
    assert in_order(["b-2", "a-10", "a-9", "a-c3"]) == ["a-c3", "a-9", "a-10", "b-2"]


def test_the_longest_list_stays_far_under_the_kubelets_message_limit() -> None:
    # Even if all UUIDs begin alike, so that IDs are as long as they get.
    devices = tuple(Device(at, f"GPU-00000000-0000-0000-0000-{at:012d}", 143771) for at in range(8))
    node = NodeDevices("n1", NodeMode.SHARE, MemoryUnit.MIB_128, devices)
    made = device_list(MEMORY, node, DeviceIds(devices))
    assert made.healthy == 8 * 1123
    assert len(made.encoded) < MAX_MESSAGE_BYTES // 8
    assert len(ListAndWatchResponse.FromString(made.encoded).devices) == 8 * 1123


def test_the_list_marks_gpus_that_are_not_healthy() -> None:
    devices = (Device(0, "GPU-aaaaaaaa", 2048), Device(1, "GPU-bbbbbbbb", 1024, healthy=False, reason="lost"))
    node = NodeDevices("n1", NodeMode.CORE_MEM, MemoryUnit.GIB, devices)
    made = device_list(MEMORY, node, DeviceIds(devices))
    assert [(one.ID, one.health) for one in ListAndWatchResponse.FromString(made.encoded).devices] == [
        ("aaaaaaaa-0", "Healthy"),
        ("aaaaaaaa-8", "Healthy"),
        ("bbbbbbbb-0", "Unhealthy"),
    ]
    core = device_list(CORE, node, DeviceIds(devices))
    assert (core.healthy, core.unhealthy) == (100, 100)


def test_each_mode_has_its_resources() -> None:
    found = {mode.value: tuple(one.name for one in rules_of(mode).plugins) for mode in MODES.values()}
    assert found == {
        "default": (),
        "share": (names.GPU_MEM,),
        "cgpu": (names.GPU_MEM,),
        "mps": (names.GPU_MEM,),
        "core_mem": (names.GPU_MEM, names.GPU_CORE),
        "topology": (names.GPU_WHOLE,),
        "dra": (),
    }


def test_whole_gpus_have_numa_hints_and_shares_have_none() -> None:
    devices = tuple(
        Device(index, f"GPU-{index}aaaaaaa", 15360, numa_node=numa) for index, numa in enumerate((1, 0, -1))
    )
    there = NodeDevices("n1", NodeMode.TOPOLOGY, MemoryUnit.GIB, devices)
    for resource, hints in ((WHOLE, [[1], [0], []]), (MEMORY, [[]] * 45)):
        listed = device_list(resource, there, DeviceIds(devices)).encoded
        found = ListAndWatchResponse.FromString(listed).devices
        assert [[one.ID for one in device.topology.nodes] for device in found] == hints
