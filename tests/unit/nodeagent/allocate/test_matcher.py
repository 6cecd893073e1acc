"""Which pod an Allocate call is for."""

import random
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpushare.api import names
from gpushare.api.node.device import NodeDevices
from gpushare.api.node.modes import NodeMode
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.gpu_selection import GpuSelection
from gpushare.api.request.request import Request
from gpushare.nodeagent.allocate.grant_log import UNLISTED_GRACE_S, Slot
from gpushare.nodeagent.allocate.matcher import AllocateMatcher
from gpushare.nodeagent.allocate.node_allocations import NodeAllocations
from gpushare.nodeagent.allocate.pod_allocations import allocated_pod
from gpushare.nodeagent.errors import AllocationRefused
from tests.unit.nodeagent.allocate.allocated_pods import (
    APP,
    INIT,
    SIDECAR,
    Admitting,
    PickFn,
    allocated,
    node_of,
    request,
    undescribed,
)


def on_gpu(book: NodeAllocations, index: int) -> PickFn:
    """The kubelet takes IDs of that GPU, regardless of the preferred ones."""
    uuid = book.node.devices[index].uuid

    def pick(resource: str, amount: int, free: Sequence[str], must: Sequence[str]) -> list[str]:
        rest = [one for one in free if book.ids.gpu_of(one) == uuid and one not in must]
        if len(rest) + len(must) < amount:
            return AllocateMatcher(book).prefer(resource, amount, free, must)
        return [*must, *rest][:amount]

    return pick


def test_the_oldest_of_equal_decisions_is_served_first() -> None:
    node = node_of(15360)
    book = NodeAllocations(node)
    young = allocated(node, "young", 0, request((APP, 3)), at_ns=20)
    old = allocated(node, "old", 0, request((APP, 3)), at_ns=10)
    book.put(young)
    book.put(old)
    assert [match.pod.bound.name for match in Admitting(book).admit(young)] == ["old"]


def test_a_pod_decided_before_the_node_was_described_is_counted_and_served() -> None:
    node = node_of(15360, 15360)
    book = NodeAllocations(node)
    early = allocated_pod(allocated(undescribed(node), "early", 1, request((APP, 10))).bound, node)
    assert early is not None
    book.put(early)
    late = allocated(node, "late", 0, request((APP, 6)))
    book.put(late)
    admitting = Admitting(book)
    # GPU 1 has no room for 6 more: pods allocated to it count.
    with pytest.raises(AllocationRefused):
        admitting.admit(late, on_gpu(book, 1))
    (match,) = admitting.admit(early)
    assert (match.pod.bound.name, match.shares[0].index, match.moved) == ("early", 1, False)


def test_an_amount_that_no_pod_waits_for_is_refused() -> None:
    node = node_of(15360, 15360)
    book = NodeAllocations(node)
    book.put(allocated(node, "a", 1, request((APP, 4))))
    ids = book.ids.memory_ids(node.devices[1], MemoryUnit.GIB)
    with pytest.raises(AllocationRefused, match=r"^no pod bound to node n1 is waiting for 1 unit of GPU 1$"):
        AllocateMatcher(book).match(names.GPU_MEM, ids[:1])
    with pytest.raises(AllocationRefused, match=r"is waiting for 30% compute$"):
        AllocateMatcher(book).prefer(names.GPU_CORE, 30, [], [])


def test_compute_on_another_gpu_than_the_memory_is_refused() -> None:
    node = node_of(15360, 15360, mode=NodeMode.CORE_MEM)
    book = NodeAllocations(node)
    one = allocated(node, "a", 0, request((APP, 2, 30)))
    book.put(one)
    book.grants.grant(
        Slot(one.uid, "c0", names.GPU_MEM), book.ids.memory_ids(node.devices[0], MemoryUnit.GIB)[:2], 0.0
    )
    with pytest.raises(AllocationRefused):
        AllocateMatcher(book).match(names.GPU_CORE, book.ids.core_ids(node.devices[1])[:30])


def test_a_pod_is_moved_only_if_every_other_promise_can_still_be_kept() -> None:
    node = node_of(15360, 15360)
    book = NodeAllocations(node)
    mover = allocated(node, "mover", 0, request((APP, 3)))
    book.put(mover)
    book.put(allocated(node, "promised", 1, request((APP, 12))))
    kubelet = Admitting(book)
    [match] = kubelet.admit(mover, on_gpu(book, 1))
    assert (match.moved, match.shares[0].index) == (True, 1)
    other = allocated(node, "other", 0, request((APP, 1)))
    book.put(other)
    with pytest.raises(AllocationRefused, match="no other GPU has enough free"):
        kubelet.admit(other, on_gpu(book, 1))


def test_unequal_pods_are_not_moved() -> None:
    node = node_of(15360, 15360)
    book = NodeAllocations(node)
    single = allocated(node, "single", 0, request((APP, 3)))
    book.put(single)
    book.put(allocated(node, "pair", 0, request((APP, 3), (APP, 4))))
    with pytest.raises(AllocationRefused):
        Admitting(book).admit(single, on_gpu(book, 1))


def test_a_pod_is_not_moved_to_a_gpu_that_its_annotations_exclude() -> None:
    node = node_of(15360, 15360)
    book = NodeAllocations(node)
    selection = GpuSelection(uuids_excluded=(node.devices[1].uuid,))
    choosy = allocated(node, "choosy", 0, msgspec.structs.replace(request((APP, 3)), selection=selection))
    book.put(choosy)
    with pytest.raises(AllocationRefused):
        Admitting(book).admit(choosy, on_gpu(book, 1))
    # Nor does it get the GPU of a pod that requests as much, and may have any.
    book.put(allocated(node, "easy", 1, request((APP, 3))))
    book.grants.observe({choosy.key: {}}, 0.0)
    [match] = Admitting(book).admit(choosy)
    assert (match.pod.bound.name, match.shares[0].index) == ("choosy", 0)


def test_an_answer_that_the_kubelet_never_lists_is_forgotten_after_a_while() -> None:
    node = node_of(15360)
    book = NodeAllocations(node)
    one = allocated(node, "a", 0, request((APP, 3)))
    book.put(one)
    slot = Slot(one.uid, "c0", names.GPU_MEM)
    book.grants.grant(slot, ["00000001-0", "00000001-8", "00000001-16"], 100.0)
    assert book.grants.observe({}, 99.0) == []
    assert book.grants.observe({}, 100.0 + UNLISTED_GRACE_S / 2) == []
    assert AllocateMatcher(book).waiting(names.GPU_MEM, 3) == []
    assert book.grants.observe({}, 101.0 + UNLISTED_GRACE_S) == [slot]
    assert [one.pod.bound.name for one in AllocateMatcher(book).waiting(names.GPU_MEM, 3)] == ["a"]


def test_a_restarted_kubelet_requests_again_what_it_does_not_list() -> None:
    node = node_of(15360)
    book = NodeAllocations(node)
    one = allocated(node, "a", 0, request((APP, 3)))
    book.put(one)
    book.grants.grant(Slot(one.uid, "c0", names.GPU_MEM), ["00000001-0"], 100.0)
    book.grants.kubelet_registered(names.GPU_MEM, 100.1)
    # From before the kubelet's restart.
    assert book.grants.observe({}, 100.05) == []
    assert book.grants.observe({}, 100.3)
    assert AllocateMatcher(book).waiting(names.GPU_MEM, 3)


def test_a_restarted_kubelet_is_not_taken_to_have_lost_what_it_requested_since() -> None:
    """It lists nothing of an init container; then it is the turn of its app."""
    node = node_of(15360)
    book = NodeAllocations(node)
    one = allocated(node, "a", 0, request((INIT, 2), (APP, 3)))
    book.put(one)
    book.grants.grant(Slot(one.uid, "c0", names.GPU_MEM), ["00000001-0", "00000001-8"], 100.2)
    book.grants.kubelet_registered(names.GPU_MEM, 100.1)
    assert book.grants.observe({}, 100.3) == []
    # It took us for compute later: no evidence about memory.
    book.grants.kubelet_registered(names.GPU_CORE, 100.4)
    assert book.grants.observe({}, 100.5) == []
    assert [waiting.container.name for waiting in AllocateMatcher(book).waiting(names.GPU_MEM, 3)] == ["c1"]


def test_a_pod_of_the_same_name_is_another_pod() -> None:
    node = node_of(15360)
    book = NodeAllocations(node)
    first, second = (allocated(node, "s-0", 0, request((APP, 3))) for _ in range(2))
    book.put(first)
    kubelet = Admitting(book)
    kubelet.admit(first)
    kubelet.reconcile()
    book.remove(first.uid)
    book.put(second)
    assert [one.pod.uid for one in AllocateMatcher(book).waiting(names.GPU_MEM, 3)] == [second.uid]


containers = st.one_of(
    st.tuples(st.just(APP), st.integers(1, 4)).map(lambda one: [one]),
    st.lists(st.tuples(st.just(APP), st.integers(1, 3)), min_size=2, max_size=3),
    st.tuples(st.integers(1, 4), st.integers(1, 4)).map(lambda two: [(INIT, two[0]), (APP, two[1])]),
    st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 3)).map(
        lambda three: [(SIDECAR, three[0]), (INIT, three[1]), (APP, three[2])]
    ),
)


def placed(node: NodeDevices, requests: Sequence[Request]) -> list[tuple[list[int], Request]]:
    """The pods that fit, lowest GPUs first, as a scheduler would place them."""
    held = [0] * len(node.devices)
    decided = []
    for wanted in requests:
        sizes = list(map(node.units_of, node.devices))
        fitting = [
            index
            for index, size in enumerate(sizes)
            if held[index] + wanted.memory_units <= size and not (wanted.whole_device and held[index])
        ][: wanted.gpu_count]
        if len(fitting) == wanted.gpu_count:
            for index in fitting:
                held[index] += wanted.allocated_units(wanted.memory_units, sizes[index])
            decided.append((fitting, wanted))
    return decided


def check(kubelet: Admitting, node: NodeDevices) -> None:
    """No GPU is promised beyond its capacity, and every served pod's record matches its devices."""
    held = {device.uuid: 0 for device in node.devices}
    for one in kubelet.book.pods:
        for share in one.allocation.gpus:
            held[share.uuid] += share.mib
        for (name, resource), ids in kubelet.held.get(one.bound.key, {}).items():
            if resource == names.GPU_MEM:
                [container] = [each for each in one.request.containers if each.name == name]
                counts = kubelet.book.ids.gpus_of(ids)
                reused = any(each.kind is INIT for each in one.request.containers)
                # Reused IDs of a larger init container may all lie on some of its pod's GPUs.
                assert counts.keys() == one.decided_gpus(container) or (
                    reused and counts.keys() < one.decided_gpus(container)
                )
                assert reused or set(counts.values()) == {one.request.part_of(container)}
    assert all(held[device.uuid] <= device.total_mib for device in node.devices)


requests = st.one_of(
    containers.map(lambda requested: request(*requested)),
    st.builds(
        lambda requested, gpus, whole: request(*requested, gpus=gpus, whole=whole),
        containers,
        st.integers(1, 3),
        st.integers(0, 3).map(lambda one: not one),
    ),
)


@settings(deadline=None)
@given(st.lists(requests, min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_every_pod_is_served_on_its_allocated_gpus_if_preferences_are_followed(
    requested: list[Request], rng: random.Random
) -> None:
    node = node_of(8192, 8192, 16384, 16384)
    book = NodeAllocations(node)
    pods = [allocated(node, f"p{at}", on, wanted) for at, (on, wanted) in enumerate(placed(node, requested))]
    for one in pods:
        book.put(one)
    kubelet = Admitting(book)

    def shuffled(resource: str, amount: int, free: Sequence[str], must: Sequence[str]) -> list[str]:
        chosen = AllocateMatcher(book).prefer(resource, amount, rng.sample(list(free), len(free)), must)
        assert len(set(chosen)) == amount
        assert set(must) <= set(chosen) <= set(free)
        return chosen

    # The kubelet admits roughly in the order of the decisions, and lists the pods that it admits.
    for one in pods:
        kubelet.held[one.bound.key] = {}
        book.grants.observe(kubelet.listing(), kubelet.now_s)
        kubelet.admit(one, shuffled)
        kubelet.reconcile()
        check(kubelet, node)
    assert all(one.assigned for one in book.pods)


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=8),
    st.lists(st.integers(0, 2), min_size=8, max_size=8),
    st.randoms(use_true_random=False),
)
def test_whatever_ids_the_kubelet_takes_no_gpu_is_promised_twice_and_records_become_true(
    units: list[int], taken: list[int], rng: random.Random
) -> None:
    node = node_of(6144, 6144, 12288)
    book = NodeAllocations(node)
    pods = [
        allocated(node, f"p{at}", on, wanted)
        for at, (on, wanted) in enumerate(placed(node, [request((APP, each)) for each in units]))
    ]
    assume(pods)
    for one in pods:
        book.put(one)
    kubelet = Admitting(book)
    for at, one in enumerate(rng.sample(pods, len(pods))):
        try:
            kubelet.admit(one, on_gpu(book, taken[at]))
        except AllocationRefused:
            book.remove(one.uid)  # the kubelet fails the pod
        kubelet.reconcile()
        check(kubelet, node)


def test_a_pod_whose_record_was_marked_for_an_identical_request_still_waits() -> None:
    node = node_of(15_360, 15_360)
    book = NodeAllocations(node)
    marked, other = (
        allocated(node, name, on, request((APP, 5))) for name, on in (("marked", 0), ("other", 1))
    )
    for one in (marked, other):
        book.put(one)
    book.grants.observe({}, 0.0)
    stamped = allocated_pod(marked.bound.annotated({names.ANN_ASSIGNED: "true"}), node)
    assert stamped is not None
    assert stamped.assigned
    book.put(stamped)
    assert [one.pod.bound.name for one in AllocateMatcher(book).waiting(names.GPU_MEM, 5)] == [
        "other",
        "marked",
    ]
    # What the kubelet took of its GPU is for it, though another pod waits that cannot be moved there.
    ids = book.ids.memory_ids(node.devices[0], node.unit)[:5]
    assert AllocateMatcher(book).match(names.GPU_MEM, ids).pod.uid == marked.uid
    # A pod that is listed, or that runs while others wait, does not wait.
    book.grants.observe({"default/marked": {("c0", names.GPU_MEM): frozenset(ids)}}, 1.0)
    assert [one.pod.bound.name for one in AllocateMatcher(book).waiting(names.GPU_MEM, 5)] == ["other"]
