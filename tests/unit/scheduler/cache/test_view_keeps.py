"""A running pod's share stays its own, whatever happens to its annotations and to its node's description."""

import msgspec
import pytest

from gpushare.api import names
from gpushare.api.node.device import NodeDevices
from gpushare.api.node.modes import NodeMode
from gpushare.api.objects import decode_pod
from gpushare.api.quantity import MemoryUnit
from gpushare.scheduler.cache.pod_records import record_of
from gpushare.scheduler.framework.binder import Binder
from tests.unit.scheduler.framework.test_bind import args
from tests.unit.scheduler.world import World, gpu_node, pod_object

FOREIGN = {names.ANN_MEM_INDEX: "0", names.ANN_MEM_POD: "4", names.ANN_MEM_DEVICE: "16"}
SECOND = {names.ANN_ALLOCATION: '{"0":{"0":4}}'}


async def bound(world: World, name: str) -> dict[str, str]:
    """A pod of 4 GiB that we bound and the watch has confirmed; its annotations."""
    assert isinstance(world.binder, Binder)
    world.create(name, 4)
    await world.binder.bind(args(name))
    world.see(name)
    annotations: dict[str, str] = world.api.pods[f"default/{name}"]["metadata"]["annotations"]
    return annotations


async def test_a_share_does_not_become_free_because_its_record_was_broken(world: World) -> None:
    annotations = await bound(world, "a")
    annotations[names.ANN_SHARE] = "{"
    world.see("a")
    assert world.used_mib("n1") == [4096]
    assert [reason for _, reason, _ in world.events.notes] == ["MalformedGPUAllocation"]
    world.api.pods["default/a"]["status"]["phase"] = "Succeeded"
    world.see("a")
    assert world.used_mib("n1") == [0]


async def test_a_share_does_not_become_free_because_its_record_was_removed(world: World) -> None:
    annotations = await bound(world, "a")
    annotations.clear()
    assert record_of(decode_pod(world.api.pods["default/a"])) is not None  # the informer goes on following it
    world.see("a")
    assert world.used_mib("n1") == [4096]


def test_a_pod_without_an_allocation_holds_nothing(world: World) -> None:
    world.create("a", 4, node="n1")
    world.create("b", 1.5, node="n1")
    assert world.used_mib("n1") == [0]
    assert world.ledger.held("uid-a") is None


async def test_a_reservation_stays_when_the_pod_is_seen_bound_there_with_a_broken_record(
    world: World,
) -> None:
    world.create("a", 4)
    await world.binder.bind(args("a"))
    world.api.pods["default/a"]["metadata"]["annotations"][names.ANN_SHARE] = "{"
    world.see("a")
    held = world.ledger.held("uid-a")
    assert held is not None
    assert (held.confirmed, world.reservations.deadlines) == (True, {})


def test_a_foreign_record_that_ours_replaced_does_not_come_back_with_the_next_node_event(
    world: World,
) -> None:
    world.add_node(gpu_node("n1", 16384, 16384))
    world.create("f", 4, node="n1", annotations=FOREIGN)
    ours = '{"version":1,"unit":"1GiB","gpus":[{"uuid":"GPU-n1-1","index":1,"mib":4096,"units":4,"of":16}],"containers":{}}'
    world.create("f", 4, node="n1", annotations={**FOREIGN, names.ANN_SHARE: ours})
    assert world.used_mib("n1") == [0, 4096]
    world.add_node(gpu_node("n1", 16384, 16384, mode=NodeMode.CGPU))
    assert world.used_mib("n1") == [0, 4096]
    world.create("f", 4, node="n1", phase="Succeeded")
    world.add_node(gpu_node("n1", 16384, 16384))
    assert world.used_mib("n1") == [0, 0]


def test_while_a_node_reports_no_gpu_its_foreign_pods_are_neither_freed_nor_reported(
    world: World,
) -> None:
    world.create("f", 4, node="n1", annotations=FOREIGN)
    world.add_node(gpu_node("n1"))  # a kubelet restarts: capacity reads 0 for seconds
    world.see("f")
    assert world.events.notes == []
    assert world.ledger.held("uid-f") is not None
    world.add_node(gpu_node("n1", 16384))
    assert world.used_mib("n1") == [4096]


@pytest.mark.parametrize("annotations", [SECOND, {names.ANN_MEM_INDEX: "0", names.ANN_MEM_POD: "4"}])
def test_units_without_a_total_keep_the_unit_in_which_they_were_first_read(
    world: World, annotations: dict[str, str]
) -> None:
    world.create("f", 4, node="n1", annotations=annotations)
    assert world.used_mib("n1") == [4096]
    fine = msgspec.structs.replace(gpu_node("n1", 16384), unit=MemoryUnit.MIB_128)
    world.add_node(fine)
    assert world.used_mib("n1") == [4096]
    world.see("f")
    assert world.used_mib("n1") == [4096]
    world.create("g", 8, node="n1", annotations={names.ANN_ALLOCATION: '{"0":{"0":8}}'})
    assert world.used_mib("n1") == [5120]
    assert isinstance(world.ledger.node("n1"), NodeDevices)


def test_a_corrected_waiting_pod_is_no_longer_malformed(world: World) -> None:
    pod = pod_object("a", 4)
    pod["metadata"]["labels"] = {names.LABEL_POD_GPU_COUNT: "two"}
    world.api.create(pod)
    world.see("a")
    assert set(world.view.malformed) == {"pod default/a"}
    pod["metadata"]["labels"] = {}
    world.see("a")
    assert world.view.malformed == {}
