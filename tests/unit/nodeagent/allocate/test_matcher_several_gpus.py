"""Which pod an Allocate call is for, if pods have several GPUs or whole ones."""

import random
from collections.abc import Sequence
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.api import names
from gpushare.api.node.modes import NodeMode
from gpushare.api.quantity import MemoryUnit
from gpushare.nodeagent.allocate.matcher import AllocateMatcher
from gpushare.nodeagent.allocate.node_allocations import NodeAllocations
from gpushare.nodeagent.allocate.pod_allocations import allocated_pod
from gpushare.nodeagent.dra.claiming_pods import ClaimHolders
from gpushare.nodeagent.errors import AllocationRefused
from gpushare.nodeagent.isolation.watchdog.cgroups import Owner
from gpushare.nodeagent.isolation.watchdog.watchdog import Watchdog
from gpushare.nodeagent.observability.snapshot import Scrape
from tests.unit.nodeagent.allocate.allocated_pods import (
    APP,
    INIT,
    SIDECAR,
    Admitting,
    allocated,
    node_of,
    request,
)
from tests.unit.nodeagent.allocate.test_matcher import check


def test_the_kubelet_is_given_equal_parts_of_each_gpu_as_preference() -> None:
    node = node_of(15360, 15360, 15360)
    book = NodeAllocations(node)
    one = allocated(node, "a", (0, 2), request((APP, 3), gpus=2))
    book.put(one)
    kubelet = Admitting(book)
    chosen = AllocateMatcher(book).prefer(names.GPU_MEM, 6, kubelet.free(names.GPU_MEM), [])
    assert book.ids.gpus_of(chosen) == {node.devices[0].uuid: 3, node.devices[2].uuid: 3}
    [match] = kubelet.admit(one)
    assert [(share.index, share.units, share.mib) for share in match.shares] == [(0, 3, 3072), (2, 3, 3072)]
    assert not match.moved
    assert kubelet.reconcile() == {"a": ""}


def test_a_container_with_its_own_gpu_gets_nothing_of_its_neighbours() -> None:
    """Otherwise its use of that GPU would pass for its own share, and the exporter would report memory twice."""
    node = node_of(16384, 16384, 16384, mode=NodeMode.CORE_MEM)
    wanted = msgspec.structs.replace(request((APP, 10, 30), (APP, 10, 30)), memory_units=10, core_percent=30)
    wanted = msgspec.structs.replace(wanted, gpu_count=2, apart=True)
    book = NodeAllocations(node)
    decided = allocated(node, "a", (0, 2), wanted)
    one = allocated_pod(msgspec.structs.replace(decided.bound, containers={"id-0": "c0", "id-1": "c1"}), node)
    assert one is not None
    book.put(one)

    def has(container: str) -> list[tuple[int, int]]:
        shares = [book.share_of(one, device.uuid, container) for device in node.devices]
        return [(share.index, share.mib) for share in shares if share is not None]

    assert (has("c0"), has("c1")) == ([(0, 10240)], [(2, 10240)])
    assert has("") == [(0, 10240), (2, 10240)], "the pod"
    whole = SimpleNamespace(pods=[], whole={})
    sources = SimpleNamespace(
        present=lambda: node, minors=dict, book=book, whole=whole, claims=ClaimHolders(dict)
    )
    scrape = Scrape(sources)  # type: ignore[arg-type]
    uuids = [device.uuid for device in node.devices]
    assert sorted((one.container, one.gpu) for one in scrape.allocations) == [
        ("c0", uuids[0]),
        ("c1", uuids[2]),
    ]
    watched = SimpleNamespace(_book=book, _burst_mib=lambda *_: 0)
    for container_id, at in (("id-0", 0), ("id-1", 2)):
        owner = Owner(one.uid, container_id)
        found = [Watchdog.holder_of(watched, owner, uuid) for uuid in uuids]  # type: ignore[arg-type]
        assert [index for index, holder in enumerate(found) if holder is not None] == [at]


def test_ids_in_unequal_parts_match_no_pod() -> None:
    node = node_of(15360, 15360)
    book = NodeAllocations(node)
    book.put(allocated(node, "a", (0, 1), request((APP, 2), gpus=2)))
    first, second = (book.ids.memory_ids(device, MemoryUnit.GIB) for device in node.devices)
    with pytest.raises(
        AllocationRefused,
        match=r"is waiting for 4 units with devices on several GPUs \(3 on GPU 0, 1 on GPU 1\); the scheduler placed default/a",
    ):
        AllocateMatcher(book).match(names.GPU_MEM, [*first[:3], second[0]])
    with pytest.raises(
        AllocationRefused,
        match="is waiting for 4 units of GPU 0; the scheduler placed default/a on GPU 0 and GPU 1",
    ):
        AllocateMatcher(book).match(names.GPU_MEM, first[:4])
    assert AllocateMatcher(book).match(names.GPU_MEM, [*first[:2], *second[:2]]).pod.bound.name == "a"


def test_ids_left_by_a_larger_init_container_are_the_apps_wherever_they_lie() -> None:
    node = node_of(15360, 15360)
    book = NodeAllocations(node)
    one = allocated(node, "a", (0, 1), request((INIT, 4), (APP, 2), gpus=2))
    book.put(one)
    kubelet = Admitting(book)
    init, app = kubelet.admit(one)
    # The kubelet reuses any of the IDs: all four of the app's lie on the first GPU here.
    assert len(book.ids.gpus_of(kubelet.held["default/a"]["c1", names.GPU_MEM])) == 1
    assert [share.units for share in init.shares] == [4, 4]
    assert [(share.index, share.units) for share in app.shares] == [(0, 2), (1, 2)]
    assert kubelet.reconcile() == {"a": ""}
    check(kubelet, node)


def test_ids_left_by_a_smaller_init_container_are_completed_in_equal_parts() -> None:
    node = node_of(15360, 15360)
    book = NodeAllocations(node)
    one = allocated(node, "a", (0, 1), request((INIT, 2), (APP, 4), gpus=2))
    book.put(one)
    kubelet = Admitting(book)
    kubelet.admit(one)
    assert set(book.ids.gpus_of(kubelet.held["default/a"]["c1", names.GPU_MEM]).values()) == {4}


def test_pods_that_the_kubelet_serves_in_the_other_order_swap_places() -> None:
    node = node_of(15360, 15360, 15360, 15360)
    book = NodeAllocations(node)
    first, second = (
        allocated(node, name, on, request((APP, 6), (APP, 4), gpus=2))
        for name, on in (("a", (0, 1)), ("b", (2, 3)))
    )
    for one in (first, second):
        book.put(one)
    kubelet = Admitting(book)
    kubelet.admit(second)
    notes = kubelet.reconcile()
    assert (
        notes["b"]
        == "GPU 2 and GPU 3 were allocated, but the kubelet assigned GPU 0 and GPU 1; the record was corrected"
    )
    moved = book.pod(first.uid)
    assert moved is not None
    assert [share.index for share in moved.allocation.gpus] == [2, 3]
    kubelet.admit(moved)
    kubelet.reconcile()
    check(kubelet, node)


def test_a_whole_gpu_is_given_for_the_requested_ids() -> None:
    node = node_of(16160, 16160)
    book = NodeAllocations(node)
    one = allocated(node, "a", 1, request((SIDECAR, 1), (APP, 3), whole=True))
    book.put(one)
    book.put(allocated(node, "b", 0, request((APP, 3))))
    kubelet = Admitting(book)
    sidecar, app = kubelet.admit(one)
    # They divide the GPU in proportion to their requests: 1 and 3 of 4 are 3 and 11 of 15.
    assert [
        (match.shares[0].index, match.shares[0].units, match.shares[0].mib) for match in (sidecar, app)
    ] == [
        (1, 3, 3232),
        (1, 11, 11850),
    ]
    assert len(kubelet.held["default/a"]["c1", names.GPU_MEM]) == 3
    assert kubelet.reconcile() == {"a": ""}
    [held] = [share for each in book.pods if each.bound.name == "a" for share in each.allocation.gpus]
    assert (held.units, held.mib) == (15, 16160)


def test_a_whole_gpu_is_not_given_to_a_pod_that_wants_a_part_of_one() -> None:
    node = node_of(16160, 16160)
    book = NodeAllocations(node)
    whole = allocated(node, "whole", 1, request((APP, 3), whole=True), at_ns=1)
    part = allocated(node, "part", 0, request((APP, 3)), at_ns=2)
    for one in (whole, part):
        book.put(one)
    kubelet = Admitting(book)
    ids = {device.index: book.ids.memory_ids(device, MemoryUnit.GIB)[:3] for device in node.devices}
    assert AllocateMatcher(book).match(names.GPU_MEM, ids[0]).pod.bound.name == "part"
    assert AllocateMatcher(book).match(names.GPU_MEM, ids[1]).shares[0].mib == 16160
    kubelet.admit(whole)
    with pytest.raises(AllocationRefused):
        AllocateMatcher(book).match(names.GPU_MEM, book.ids.memory_ids(node.devices[1], MemoryUnit.GIB)[3:6])


def test_changed_labels_of_a_bound_pod_change_nothing() -> None:
    node = node_of(16160, 16160)
    decided = allocated(node, "a", (0, 1), request((APP, 3), gpus=2)).bound
    again = allocated_pod(decided, node)
    assert again is not None
    assert (again.request.gpu_count, again.request.memory_units, again.request.whole_device) == (2, 3, False)
    whole = allocated(node, "b", 0, request((APP, 3), whole=True)).bound
    assert not whole.request.gpu_count > 1
    unlabelled = allocated_pod(
        type(whole)(whole.uid, whole.namespace, whole.name, "", request((APP, 3)), whole.annotations), node
    )
    assert unlabelled is not None
    assert unlabelled.request.whole_device


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 2), st.permutations(range(4))), min_size=1, max_size=6),
    st.randoms(use_true_random=False),
)
def test_whatever_gpus_the_kubelet_takes_none_is_promised_twice_and_records_become_true(
    wanted: list[tuple[int, list[int]]], rng: random.Random
) -> None:
    node = node_of(6144, 6144, 6144, 12288)
    book = NodeAllocations(node)
    held = [0] * 4
    pods = []
    for at, (units, order) in enumerate(wanted):
        place = [index for index in order if held[index] + units <= node.units_of(node.devices[index])][:2]
        if len(place) == 2:
            for index in place:
                held[index] += units
            pods.append(allocated(node, f"p{at}", place, request((APP, units), gpus=2)))
    for one in pods:
        book.put(one)
    kubelet = Admitting(book)

    def anywhere(resource: str, amount: int, free: Sequence[str], must: Sequence[str]) -> list[str]:
        two = rng.sample(node.devices, 2)
        by_gpu = book.ids.by_gpu(free)
        picked = [one for device in two for one in by_gpu.get(device.uuid, [])[: amount // 2]]
        return picked if len(picked) == amount else AllocateMatcher(book).prefer(resource, amount, free, must)

    for one in rng.sample(pods, len(pods)):
        try:
            kubelet.admit(one, anywhere)
        except AllocationRefused:
            book.remove(one.uid)  # the kubelet fails the pod
        kubelet.reconcile()
        check(kubelet, node)
