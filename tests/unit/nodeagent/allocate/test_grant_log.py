"""What is held of an answer between the moment it was given and the moment the kubelet lists it."""

from gpushare.api import names
from gpushare.nodeagent.allocate.grant_log import PREFERRED_GRACE_S, UNLISTED_GRACE_S, Slot
from gpushare.nodeagent.allocate.matcher import AllocateMatcher
from gpushare.nodeagent.allocate.node_allocations import NodeAllocations
from gpushare.nodeagent.allocate.pod_allocations import AllocatedPod, allocated_pod
from tests.unit.nodeagent.allocate.allocated_pods import APP, allocated, node_of, request

MEMORY = ("c0", names.GPU_MEM)


def two(units: int) -> tuple[NodeAllocations, AllocatedPod, AllocatedPod]:
    """Pods that ask alike, of which ``a`` was decided for GPU 0 and ``b`` for GPU 1."""
    node = node_of(15_360, 15_360)
    book = NodeAllocations(node)
    one, other = (allocated(node, name, on, request((APP, units))) for on, name in enumerate("ab"))
    book.put(one)
    book.put(other)
    return book, one, other


def ids_on(book: NodeAllocations, index: int, units: int) -> frozenset[str]:
    return frozenset(book.ids.memory_ids(book.node.devices[index], book.node.unit)[:units])


def test_a_list_that_was_overtaken_by_a_later_one_says_nothing_new() -> None:
    book, one, _ = two(3)
    book.grants.observe({"default/a": {MEMORY: ids_on(book, 0, 3)}}, 2.0)
    assert book.grants.observe({}, 1.0) == []
    assert book.device_ids(one) == {MEMORY: ids_on(book, 0, 3)}


def test_who_believes_no_unlisted_answer_is_not_put_off_by_a_later_list_that_came_first() -> None:
    book, one, _ = two(3)
    book.grants.grant(Slot(one.uid, *MEMORY), ids_on(book, 0, 3), 100.0)
    assert book.grants.observe({}, 102.0) == []
    assert book.grants.observe({}, 101.0, grace_s=0.0) == [Slot(one.uid, *MEMORY)]
    assert book.device_ids(one) == {}


def test_an_answer_to_one_that_has_other_devices_is_awaited_for_one_that_asks_alike() -> None:
    book, one, other = two(3)
    book.grants.grant(Slot(one.uid, *MEMORY), ids_on(book, 0, 3), 100.0)
    listed = {"default/a": {MEMORY: ids_on(book, 1, 3)}}
    book.grants.observe(listed, 101.0)
    assert book.grants.unconfirmed(101.0)
    assert book.device_ids(other) == {MEMORY: ids_on(book, 0, 3)}
    book.grants.observe({**listed, "default/b": {MEMORY: ids_on(book, 0, 3)}}, 102.0)
    assert not book.grants.unconfirmed(102.0)
    assert book.gpus_of(one) != book.gpus_of(other)


def test_an_answer_that_nobody_has_is_not_awaited_for_ever() -> None:
    book, one, other = two(3)
    book.grants.grant(Slot(one.uid, *MEMORY), ids_on(book, 0, 3), 100.0)
    given_up = book.grants.observe({"default/a": {MEMORY: ids_on(book, 1, 3)}}, 101.0 + UNLISTED_GRACE_S)
    assert given_up == [Slot(other.uid, *MEMORY)]
    assert not book.grants.unconfirmed(101.0 + UNLISTED_GRACE_S)


def test_what_the_kubelet_was_told_to_take_is_kept_for_it_until_it_asks_or_never_does() -> None:
    book, _, _ = two(8)
    free = [*ids_on(book, 0, 15), *ids_on(book, 1, 15)]
    told = AllocateMatcher(book).prefer(names.GPU_MEM, 8, free, [], 100.0)
    assert book.grants.unconfirmed(100.0 + PREFERRED_GRACE_S / 2)
    assert AllocateMatcher(book).match(names.GPU_MEM, told).pod.bound.name == "a"
    assert not book.grants.unconfirmed(100.0 + PREFERRED_GRACE_S / 2)
    AllocateMatcher(book).prefer(names.GPU_MEM, 8, free, [], 200.0)
    assert not book.grants.unconfirmed(201.0 + PREFERRED_GRACE_S)


def test_what_the_kubelet_was_told_holds_though_the_pod_was_decided_for_another_gpu_since() -> None:
    book, one, other = two(8)
    told = AllocateMatcher(book).prefer(names.GPU_MEM, 8, ids_on(book, 0, 15), [], 100.0)
    elsewhere = allocated(book.node, "a", 1, one.request)
    moved = allocated_pod(one.bound.annotated(elsewhere.bound.annotations), book.node)
    assert moved is not None
    book.put(moved)
    match = AllocateMatcher(book).match(names.GPU_MEM, told)
    assert [share.index for share in match.shares] == [0]
    assert match.pod.uid in (one.uid, other.uid)


def test_a_marked_pod_whose_gpu_went_to_one_that_asks_alike_is_decided_anew() -> None:
    book, one, _ = two(8)
    marked = allocated_pod(one.bound.annotated({names.ANN_ASSIGNED: "true"}), book.node)
    assert marked is not None
    book.put(marked)
    book.grants.observe({"default/b": {MEMORY: ids_on(book, 0, 8)}}, 1.0)
    found = book.find_relocation()
    assert found is not None
    assert (found[0].bound.name, [device.index for device in found[1]]) == ("a", [1])
