"""Pods that request whole GPUs: which they should get, and what their records contain once the kubelet has assigned them."""

from collections.abc import Sequence

import msgspec
import pytest

from gpushare.api import names
from gpushare.api.allocation.allocation import allocate_over
from gpushare.api.allocation.annotations import Stamp, allocation_annotations, read_allocation
from gpushare.api.node.device import Device, NodeDevices
from gpushare.api.node.modes import NodeMode
from gpushare.api.node.topology import MOST_GPUS, matrix
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.request import ContainerKind, ContainerRequest, Request, effective_amount
from gpushare.nodeagent.allocate.exclusive_pods import ExclusivePod, ExclusivePods
from gpushare.nodeagent.allocate.pod_allocations import BoundPod
from gpushare.nodeagent.deviceplugin.device_ids import DeviceIds

APP, INIT = ContainerKind.APP, ContainerKind.INIT
NEAR = matrix(8, lambda a, b: 100 if a // 4 == b // 4 else 1)
DEVICES = tuple(Device(index, f"GPU-{index + 1:08x}-1111", 16384, numa_node=index // 4) for index in range(8))
NODE = NodeDevices("n1", NodeMode.TOPOLOGY, MemoryUnit.GIB, DEVICES, near=NEAR)
IDS = DeviceIds(DEVICES)


def ids(*indices: int) -> list[str]:
    return [IDS.whole_id(DEVICES[index]) for index in indices]


def on(device_ids: Sequence[str]) -> list[int]:
    return [next(device.index for device in DEVICES if device.uuid == IDS.gpu_of(one)) for one in device_ids]


def pod(
    name: str,
    *wanted: int | tuple[ContainerKind, int],
    decided: Sequence[int] = (),
    running: bool = False,
    annotations: dict[str, str] | None = None,
) -> BoundPod:
    """A pod whose containers request this many GPUs each, and the GPUs allocated to them."""
    requested = [(APP, one) if isinstance(one, int) else one for one in wanted]
    containers = tuple(
        ContainerRequest(f"c{at}", kind, at, 0, 0, gpus) for at, (kind, gpus) in enumerate(requested)
    )
    request = Request(1, 0, containers, effective_amount(requested), whole_device=True, by_gpu=True)
    if decided:
        allocation = allocate_over(NODE, [DEVICES[index] for index in decided], request)
        annotations = allocation_annotations(allocation, request, Stamp(1, assigned=False))
        assert list(annotations) == [names.ANN_SHARE]
    return BoundPod(f"uid-{name}", "default", name, name, request, annotations or {}, running=running)


def book(*pods: BoundPod) -> ExclusivePods:
    made = ExclusivePods()
    for one in pods:
        made.put(one)
    return made


def test_a_pod_gets_the_gpus_allocated_to_it() -> None:
    there = book(pod("a", 2, decided=(2, 3)), pod("b", 2, decided=(4, 5)), pod("c", 4, decided=(0, 1, 6, 7)))
    assert on(there.prefer(NODE, IDS, 2, ids(*range(8)), [])) == [2, 3]
    assert on(there.prefer(NODE, IDS, 2, ids(0, 1, 4, 5, 6, 7), [])) == [4, 5]
    assert on(there.prefer(NODE, IDS, 4, ids(0, 1, 6, 7), [])) == [0, 1, 6, 7]


def test_a_pod_without_allocation_gets_the_nearest_gpus_that_are_not_promised() -> None:
    there = book(pod("a", 3, decided=(0, 1, 2)), pod("b", 2))
    assert on(there.prefer(NODE, IDS, 2, ids(*range(8)), [])) == [4, 5]
    assert on(there.prefer(NODE, IDS, 2, ids(0, 1, 2, 3, 5), [])) == [3, 5]
    # Promised ones rather than none.
    assert on(there.prefer(NODE, IDS, 2, ids(0, 1, 2), [])) == [0, 1]


def test_a_pod_without_allocation_gets_no_cordoned_gpu_while_there_are_others() -> None:
    there = book(pod("a", 2, decided=(2, 3)), pod("b", 2))
    shut = {0, 1, 4}
    devices = tuple(msgspec.structs.replace(one, cordoned=one.index in shut) for one in DEVICES)
    there.with_cordons = msgspec.structs.replace(NODE, devices=devices)
    assert on(there.prefer(NODE, IDS, 1, ids(*range(8)), [])) == [5]
    assert on(there.prefer(NODE, IDS, 3, ids(*range(8)), [])) == [5, 6, 7]
    # Cordoned ones rather than promised ones, and what it already has stays its own.
    assert on(there.prefer(NODE, IDS, 4, ids(*range(8)), [])) == [4, 5, 6, 7]
    assert on(there.prefer(NODE, IDS, 1, ids(1, 2), [])) == [1]
    assert on(there.prefer(NODE, IDS, 2, ids(*range(8)), ids(4))) == [4, 5]
    # The scheduler has its own reasons.
    shut.add(2)
    assert on(there.prefer(NODE, IDS, 2, ids(*range(8)), [])) == [2, 3]


def test_the_gpus_of_a_finished_init_container_are_kept() -> None:
    there = book(pod("a", (INIT, 1), 2, decided=(5, 6)))
    assert on(there.prefer(NODE, IDS, 1, ids(*range(8)), [])) == [5]
    assert on(there.prefer(NODE, IDS, 2, ids(*range(8)), ids(5))) == [5, 6]
    # It went elsewhere: GPUs near to that one.
    assert on(there.prefer(NODE, IDS, 2, ids(*range(8)), ids(1))) == [0, 1]
    assert on(book().prefer(NODE, IDS, 1, ids(1, 2), ids(2))) == [2]


def test_without_enough_known_gpus_all_available_ones_are_offered() -> None:
    assert book().prefer(NODE, IDS, 3, ids(0, 1), []) == ids(0, 1)
    strange = "ffffffff-g"
    assert book().prefer(NODE, IDS, 2, [strange, *ids(3)], []) == [*ids(3), strange]


def test_on_a_node_with_very_many_gpus_the_first_are_taken() -> None:
    devices = tuple(Device(at, f"GPU-{at + 1:08x}-2222", 16384) for at in range(MOST_GPUS + 1))
    node, known = NodeDevices("n1", NodeMode.TOPOLOGY, MemoryUnit.GIB, devices), DeviceIds(devices)
    every = [known.whole_id(device) for device in devices]
    assert book().prefer(node, known, 2, every[::-1], []) == every[:2]


def corrected(
    one: BoundPod, given: dict[str, list[int]], node: NodeDevices = NODE
) -> tuple[BoundPod, str] | None:
    listing = {one.key: {(name, names.GPU_WHOLE): frozenset(ids(*its)) for name, its in given.items()}}
    found = book(one).record_patches(listing, node, IDS)
    if not found:
        return None
    [(owner, change)] = found
    assert (owner.uid, owner.bound) == (one.uid, one)
    return one.annotated(change.annotations), change.note


def recorded(one: BoundPod) -> tuple[list[int], dict[str, list[int]]]:
    allocation = read_allocation(one.annotations, None)
    assert allocation is not None
    assert all(share.units == share.device_units == 16 and share.mib == 16384 for share in allocation.gpus)
    return [share.index for share in allocation.gpus], {
        name: [share.index for share in shares] for name, shares in allocation.containers.items()
    }


def test_a_correct_record_is_left_alone() -> None:
    assert corrected(pod("a", 2, decided=(2, 3)), {"c0": [2, 3]}) is None
    assert corrected(pod("a", (INIT, 2), 1, decided=(2, 3)), {"c1": [2]}) is None
    # Nothing is written until everything is assigned.
    assert corrected(pod("a", 1, 1, decided=(2, 3)), {"c0": [5]}) is None
    assert corrected(pod("a", 1, decided=(2,)), {}) is None


def test_a_record_follows_the_kubelets_choice() -> None:
    found = corrected(pod("a", 2, decided=(2, 3)), {"c0": [4, 5]})
    assert found is not None
    now, note = found
    assert (
        note
        == "GPU 2 and GPU 3 were allocated, but the kubelet assigned GPU 4 and GPU 5; the record was corrected"
    )
    assert recorded(now) == ([4, 5], {"c0": [4, 5]})
    assert corrected(now, {"c0": [4, 5]}) is None
    one = corrected(pod("a", 1, decided=(2,)), {"c0": [4]})
    assert one is not None
    assert one[1].startswith("GPU 2 was allocated")


def test_a_pod_of_another_scheduler_gets_a_record() -> None:
    found = corrected(pod("a", 1, 1), {"c0": [1], "c1": [0]})
    assert found is not None
    assert found[1] == "the kubelet allocated GPU 0 and GPU 1, which is recorded now"
    assert recorded(found[0]) == ([0, 1], {"c0": [1], "c1": [0]})


@pytest.mark.parametrize("broken", ["{", '{"version":7,"unit":"1GiB","gpus":[],"containers":{}}'])
def test_an_unreadable_record_is_rewritten(broken: str) -> None:
    found = corrected(pod("a", 1, annotations={names.ANN_SHARE: broken}), {"c0": [1]})
    assert found is not None
    assert recorded(found[0]) == ([1], {"c0": [1]})


def test_containers_that_have_each_others_gpus_are_recorded_without_an_event() -> None:
    found = corrected(pod("a", 1, 1, decided=(0, 1)), {"c0": [1], "c1": [0]})
    assert found is not None
    assert found[1] == ""
    assert recorded(found[0]) == ([0, 1], {"c0": [1], "c1": [0]})


def test_the_gpus_of_a_larger_init_container_stay_the_pods() -> None:
    one = pod("a", (INIT, 3), 1, decided=(0, 1, 2))
    found = corrected(one, {"c1": [5]})
    assert found is not None
    assert recorded(found[0]) == ([0, 1, 5], {"c1": [5]})
    assert corrected(found[0], {"c1": [5]}) is None


def test_gpus_that_cannot_be_found_now_are_waited_for() -> None:
    fewer = msgspec.structs.replace(NODE, devices=DEVICES[:4], near=())
    one = pod("a", 1, decided=(2,))
    listing = {one.key: {("c0", names.GPU_WHOLE): frozenset(ids(6))}}
    assert book(one).record_patches(listing, fewer, DeviceIds(fewer.devices)) == []


def test_other_resources_and_other_pods_are_ignored() -> None:
    one = pod("a", 1, decided=(2,))
    listing = {
        one.key: {("c0", names.GPU_MEM): frozenset({"x"}), ("c0", names.GPU_WHOLE): frozenset(ids(2))},
        "default/other": {("c0", names.GPU_WHOLE): frozenset(ids(3))},
    }
    there = book(one)
    assert there.record_patches(listing, NODE, IDS) == []
    assert [listed.uid for listed in there.pods] == ["uid-a"]
    assert ExclusivePod(one, {}).uid == one.uid
    there.remove(one.uid)
    there.remove(one.uid)
    assert not there.pods
