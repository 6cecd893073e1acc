"""What a pod's record should say, given what its containers have."""

import msgspec

from gpushare.api import names
from gpushare.api.allocation.annotations import read_allocation
from gpushare.api.node.device import NodeDevices
from gpushare.api.node.modes import NodeMode
from gpushare.api.quantity import MemoryUnit
from gpushare.nodeagent.allocate.pod_allocations import AllocatedPod, BoundPod, allocated_pod, is_complete
from gpushare.nodeagent.deviceplugin.device_ids import DeviceIds
from gpushare.nodeagent.reconcile.allocation_patch import record_patch, relocation_patch
from tests.unit.nodeagent.allocate.allocated_pods import (
    APP,
    INIT,
    SIDECAR,
    allocated,
    node_of,
    request,
    undescribed,
)

DevicesByContainer = dict[tuple[str, str], frozenset[str]]


def served_on(
    node: NodeDevices, on: dict[str, tuple[int, int]], resource: str = names.GPU_MEM
) -> DevicesByContainer:
    """Container → (GPU index, amount)."""
    ids = DeviceIds(node.devices)
    made = ids.core_ids if resource == names.GPU_CORE else (lambda device: ids.memory_ids(device, node.unit))
    return {
        (name, resource): frozenset(made(node.devices[index])[:amount])
        for name, (index, amount) in on.items()
    }


def corrected(
    one: AllocatedPod, held: DevicesByContainer, node: NodeDevices
) -> tuple[dict[str, str | None], str] | None:
    change = record_patch(one, held, node, DeviceIds(node.devices))
    return None if change is None else (dict(change.annotations), change.note)


def test_a_correct_record_is_marked_and_otherwise_written_unchanged() -> None:
    node = node_of(16160, 16160)
    one = allocated(node, "a", 1, request((APP, 3)))
    change = corrected(one, served_on(node, {"c0": (1, 3)}), node)
    assert change is not None
    marks = {names.ANN_MEM_ASSIGNED: "true", names.ANN_ASSIGNED: "true"}
    assert change == ({**one.bound.annotations, **marks, names.ANN_ALSO: None}, "")


def test_a_record_that_the_watch_shows_late_is_not_marked() -> None:
    node = node_of(16160, 16160)
    shown = allocated(node, "a", 1, request((APP, 3)))
    stored = corrected(shown, served_on(node, {"c0": (0, 3)}), node)
    assert stored is not None
    marked = corrected(shown, served_on(node, {"c0": (1, 3)}), node)
    assert marked is not None
    now = allocated_pod(shown.bound.annotated(stored[0]).annotated(marked[0]), node)
    assert now is not None
    assert (now.assigned, [share.index for share in now.allocation.gpus]) == (True, [1])


def test_a_correct_marked_record_is_left_alone() -> None:
    node = node_of(16160)
    one = allocated(node, "a", 0, request((APP, 3)))
    marked = allocated_pod(
        one.bound.annotated({names.ANN_MEM_ASSIGNED: "true", names.ANN_ASSIGNED: "true"}), node
    )
    assert marked is not None
    assert corrected(marked, served_on(node, {"c0": (0, 3)}), node) is None


def test_a_record_from_before_the_node_was_described_is_rewritten_with_the_uuid() -> None:
    node = node_of(16160, 16160)
    one = allocated_pod(allocated(undescribed(node), "a", 1, request((APP, 3))).bound, node)
    assert one is not None
    made = corrected(one, served_on(node, {"c0": (1, 3)}), node)
    assert made is not None
    annotations, note = made
    fresh = allocated_pod(one.bound.annotated(annotations), node)
    assert fresh is not None
    assert (fresh.by_index, fresh.assigned, note) == (False, True, "")
    assert fresh.allocation.gpus == one.allocation.gpus
    assert corrected(fresh, served_on(node, {"c0": (1, 3)}), node) is None


def test_a_generation_that_is_not_there_is_not_begun() -> None:
    node = node_of(16160)
    annotations = {names.ANN_MEM_INDEX: "0", names.ANN_MEM_POD: "3", names.ANN_MEM_ASSIGNED: "false"}
    foreign = allocated_pod(BoundPod("u", "default", "foreign", "", request((APP, 3)), annotations), node)
    assert foreign is not None
    assert corrected(foreign, served_on(node, {"c0": (0, 3)}), node) == (
        {**annotations, names.ANN_MEM_ASSIGNED: "true", names.ANN_ALSO: None},
        "",
    )


def test_a_pod_on_another_gpu_gets_its_whole_record_rewritten() -> None:
    node = node_of(16160, 81559)
    one = allocated(node, "a", 0, request((APP, 3)), at_ns=77)
    change = corrected(one, served_on(node, {"c0": (1, 3)}), node)
    assert change is not None
    annotations, note = change
    assert note == "GPU 0 was allocated, but the kubelet assigned GPU 1; the record was corrected"
    remaining = {name: value for name, value in annotations.items() if value is not None}
    fresh = read_allocation(remaining, None)
    assert fresh is not None
    assert (fresh.gpus[0].uuid, fresh.gpus[0].mib, fresh.gpus[0].device_units) == (
        node.devices[1].uuid,
        81559 * 3 // 79,
        79,
    )
    assert remaining[names.ANN_MEM_DEVICE] == "79"
    assert remaining[names.ANN_MEM_ASSUME_TIME] == "77"
    assert remaining[names.ANN_MEM_ASSIGNED] == "true"


def renumbered(node: NodeDevices) -> NodeDevices:
    """The node after a restart that exchanged the indices of its first two GPUs."""
    first, second, *rest = node.devices
    swapped = (
        msgspec.structs.replace(second, index=first.index),
        msgspec.structs.replace(first, index=second.index),
    )
    return msgspec.structs.replace(node, devices=(*swapped, *rest))


def test_a_new_gpu_index_is_recorded_without_an_event_for_the_pod() -> None:
    before = node_of(16160, 16160)
    one = allocated(before, "a", 0, request((APP, 3)))
    node = renumbered(before)
    change = corrected(one, served_on(node, {"c0": (1, 3)}), node)
    assert change is not None
    annotations, note = change
    assert note == ""
    assert annotations[names.ANN_MEM_INDEX] == "1"


def test_a_correction_names_gpus_by_their_present_index() -> None:
    before = node_of(16160, 16160, 16160)
    one = allocated(before, "a", 0, request((APP, 3)))
    node = renumbered(before)
    change = corrected(one, served_on(node, {"c0": (2, 3)}), node)
    assert change is not None
    assert change[1] == "GPU 1 was allocated, but the kubelet assigned GPU 2; the record was corrected"


def test_a_correction_names_a_gpu_that_is_gone_by_its_uuid() -> None:
    before = node_of(16160, 16160)
    one = allocated(before, "a", 0, request((APP, 3)))
    node = msgspec.structs.replace(before, devices=before.devices[1:])
    change = corrected(one, served_on(node, {"c0": (0, 3)}), node)
    assert change is not None
    gone = before.devices[0].uuid
    assert change[1] == f"GPU {gone} was allocated, but the kubelet assigned GPU 1; the record was corrected"


def test_containers_on_two_gpus_are_recorded_as_they_are() -> None:
    node = node_of(16160, 16160)
    one = allocated(node, "a", 0, request((APP, 3), (APP, 4)))
    change = corrected(one, served_on(node, {"c0": (0, 3), "c1": (1, 4)}), node)
    assert change is not None
    annotations, note = change
    assert note.startswith("GPU 0 was allocated, but the kubelet assigned GPU 0 and GPU 1")
    assert annotations[names.ANN_MEM_INDEX] is None  # the first generation knows one GPU only
    assert annotations[names.ANN_ALLOCATION] == '{"0":{"0":3},"1":{"1":4}}'
    fresh = read_allocation({names.ANN_SHARE: str(annotations[names.ANN_SHARE])}, None)
    assert fresh is not None
    assert [(share.index, share.units) for share in fresh.gpus] == [(0, 3), (1, 4)]


def test_an_init_container_is_counted_on_the_gpu_of_its_pod() -> None:
    node = node_of(16160, 16160)
    one = allocated(node, "a", 0, request((INIT, 8), (APP, 3)))
    change = corrected(one, served_on(node, {"c1": (1, 3)}), node)
    assert change is not None
    fresh = read_allocation({names.ANN_SHARE: str(change[0][names.ANN_SHARE])}, None)
    assert fresh is not None
    assert [(share.index, share.units) for share in fresh.gpus] == [(1, 8)]
    assert fresh.containers["c0"][0].index == 1


def test_compute_moves_with_the_memory() -> None:
    node = node_of(16160, 16160, mode=NodeMode.CORE_MEM)
    one = allocated(node, "a", 0, request((APP, 2, 30)))
    held = served_on(node, {"c0": (1, 2)}) | served_on(node, {"c0": (1, 30)}, names.GPU_CORE)
    change = corrected(one, held, node)
    assert change is not None
    assert change[0][names.ANN_CORE] == '{"0":{"1":30}}'


def test_a_pod_is_complete_when_every_lasting_container_has_all_it_requests() -> None:
    node = node_of(16160, mode=NodeMode.CORE_MEM)
    memory, core = served_on(node, {"c0": (0, 2)}), served_on(node, {"c0": (0, 30)}, names.GPU_CORE)
    alone = allocated(node, "a", 0, request((APP, 2, 30)))
    assert not is_complete(alone, memory)
    assert is_complete(alone, memory | core)
    other_pod = allocated(node, "b", 0, request((SIDECAR, 2), (INIT, 1), (APP, 2)))
    assert not is_complete(other_pod, served_on(node, {"c2": (0, 2)}))
    assert is_complete(other_pod, served_on(node, {"c0": (0, 2), "c2": (0, 2)}))
    passing = allocated(node, "c", 0, request((INIT, 2)))
    assert not is_complete(passing, {})
    assert is_complete(passing, memory)


def test_an_allocation_decided_in_another_unit_keeps_its_mib() -> None:
    before, after = node_of(16160, 16160), node_of(16160, 16160, unit=MemoryUnit.MIB_128)
    one = allocated(before, "a", 0, request((APP, 3)))
    change = corrected(one, served_on(after, {"c0": (1, 3)}), after)
    assert change is not None
    fresh = read_allocation({names.ANN_SHARE: str(change[0][names.ANN_SHARE])}, None)
    assert fresh is not None
    assert (fresh.gpus[0].mib, fresh.unit) == (one.allocation.mib, MemoryUnit.GIB)


def test_a_record_is_left_alone_if_the_gpu_is_not_found_or_the_amount_differs() -> None:
    node = node_of(16160, 16160)
    one = allocated(node, "a", 0, request((APP, 3)))
    assert corrected(one, {("c0", names.GPU_MEM): frozenset(["ffffffff-0"] * 3)}, node) is None
    assert corrected(one, served_on(node, {"c0": (1, 2)}), node) is None


def test_a_gpu_whose_index_changed_is_written_with_the_new_index() -> None:
    node = node_of(16160, 16160)
    one = allocated(node, "a", 0, request((APP, 3)))
    swapped = msgspec.structs.replace(
        node,
        devices=tuple(msgspec.structs.replace(each, index=1 - each.index) for each in reversed(node.devices)),
    )
    ids = {
        ("c0", names.GPU_MEM): frozenset(DeviceIds(node.devices).memory_ids(node.devices[0], node.unit)[:3])
    }
    change = corrected(one, ids, swapped)
    assert change is not None
    assert change[0][names.ANN_MEM_INDEX] == "1"


def test_a_relocated_pod_waits_on_its_new_gpu() -> None:
    node = node_of(16160, 16160)
    one = allocated(node, "a", 0, request((APP, 3)))
    change = relocation_patch(one, node.devices[1:], node)
    moved = allocated_pod(one.bound.annotated(change.annotations), node)
    assert moved is not None
    assert (moved.allocation.gpus[0].index, moved.assigned) == (1, False)
    assert moved.assume_time_ns == one.assume_time_ns
    assert "assigned to a pod with an identical request; GPU 1 is allocated instead" in change.note
