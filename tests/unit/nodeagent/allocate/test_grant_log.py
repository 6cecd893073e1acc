"""What is remembered of an answer between the moment it was given and the moment the kubelet lists it."""

from gpushare.api import names
from gpushare.nodeagent.allocate.grant_log import PREFERRED_GRACE_S, UNLISTED_GRACE_S, Slot
from gpushare.nodeagent.allocate.matcher import AllocateMatcher
from gpushare.nodeagent.allocate.node_allocations import NodeAllocations
from gpushare.nodeagent.allocate.pod_allocations import AllocatedPod, allocated_pod
from tests.unit.nodeagent.allocate.allocated_pods import APP, allocated, node_of, request

MEMORY = ("c0", names.GPU_MEM)


def two(units: int) -> tuple[NodeAllocations, AllocatedPod, AllocatedPod]:
    """Pods with equal requests; ``a`` was allocated GPU 0 and ``b`` GPU 1."""
    node = node_of(15_360, 15_360)
    book = NodeAllocations(node)
    one, other = (allocated(node, name, on, request((APP, units))) for on, name in enumerate("ab"))
    book.put(one)
    book.put(other)
    return book, one, other


def ids_on(book: NodeAllocations, index: int, units: int) -> frozenset[str]:
    return frozenset(book.ids.memory_ids(book.node.devices[index], book.node.unit)[:units])


def test_a_list_overtaken_by_a_later_one_changes_nothing() -> None:
    book, one, _ = two(3)
    book.grants.observe({"default/a": {MEMORY: ids_on(book, 0, 3)}}, 2.0)
    assert book.grants.observe({}, 1.0) == []
    assert book.device_ids(one) == {MEMORY: ids_on(book, 0, 3)}


def test_a_reader_without_trust_in_unlisted_answers_is_not_confused_by_an_early_later_list() -> None:
    book, one, _ = two(3)
    book.grants.grant(Slot(one.uid, *MEMORY), ids_on(book, 0, 3), 100.0)
    assert book.grants.observe({}, 102.0) == []
    assert book.grants.observe({}, 101.0, grace_s=0.0) == [Slot(one.uid, *MEMORY)]
    assert book.device_ids(one) == {}


def test_an_answer_to_a_pod_with_other_devices_is_awaited_for_an_identical_request() -> None:
    book, one, other = two(3)
    book.grants.grant(Slot(one.uid, *MEMORY), ids_on(book, 0, 3), 100.0)
    listed = {"default/a": {MEMORY: ids_on(book, 1, 3)}}
    book.grants.observe(listed, 101.0)
    assert book.grants.unconfirmed(101.0)
    assert book.device_ids(other) == {MEMORY: ids_on(book, 0, 3)}
    book.grants.observe({**listed, "default/b": {MEMORY: ids_on(book, 0, 3)}}, 102.0)
    assert not book.grants.unconfirmed(102.0)
    assert book.gpus_of(one) != book.gpus_of(other)


def test_an_answer_that_no_pod_has_is_not_awaited_forever() -> None:
    book, one, other = two(3)
    book.grants.grant(Slot(one.uid, *MEMORY), ids_on(book, 0, 3), 100.0)
    expired = book.grants.observe({"default/a": {MEMORY: ids_on(book, 1, 3)}}, 101.0 + UNLISTED_GRACE_S)
    assert expired == [Slot(other.uid, *MEMORY)]
    assert not book.grants.unconfirmed(101.0 + UNLISTED_GRACE_S)


def test_preferred_ids_are_reserved_for_the_kubelet_until_it_requests_them_or_too_late() -> None:
    book, _, _ = two(8)
    free = [*ids_on(book, 0, 15), *ids_on(book, 1, 15)]
    preferred = AllocateMatcher(book).prefer(names.GPU_MEM, 8, free, [], 100.0)
    assert book.grants.unconfirmed(100.0 + PREFERRED_GRACE_S / 2)
    assert AllocateMatcher(book).match(names.GPU_MEM, preferred).pod.bound.name == "a"
    assert not book.grants.unconfirmed(100.0 + PREFERRED_GRACE_S / 2)
    AllocateMatcher(book).prefer(names.GPU_MEM, 8, free, [], 200.0)
    assert not book.grants.unconfirmed(201.0 + PREFERRED_GRACE_S)


def test_preferred_ids_hold_although_the_pod_was_allocated_another_gpu_since() -> None:
    book, one, other = two(8)
    preferred = AllocateMatcher(book).prefer(names.GPU_MEM, 8, ids_on(book, 0, 15), [], 100.0)
    elsewhere = allocated(book.node, "a", 1, one.request)
    moved = allocated_pod(one.bound.annotated(elsewhere.bound.annotations), book.node)
    assert moved is not None
    book.put(moved)
    match = AllocateMatcher(book).match(names.GPU_MEM, preferred)
    assert [share.index for share in match.shares] == [0]
    assert match.pod.uid in (one.uid, other.uid)


def test_a_marked_pod_whose_gpu_went_to_an_identical_request_is_allocated_again() -> None:
    book, one, _ = two(8)
    marked = allocated_pod(one.bound.annotated({names.ANN_ASSIGNED: "true"}), book.node)
    assert marked is not None
    book.put(marked)
    book.grants.observe({"default/b": {MEMORY: ids_on(book, 0, 8)}}, 1.0)
    found = book.find_relocation()
    assert found is not None
    assert (found[0].bound.name, [device.index for device in found[1]]) == ("a", [1])
