"""A GPU known only by its index stays the same GPU when its UUID becomes known, or is no longer known."""

import pytest

from gpushare.api.node.device import Device, NodeDevices, index_uuid
from gpushare.api.node.modes import NodeMode
from gpushare.api.quantity import MemoryUnit
from gpushare.ledger import Ledger, Refused
from tests.unit.ledger.ledger_samples import asks, holding, share

DESCRIBED = NodeDevices(
    "n1", NodeMode.SHARE, MemoryUnit.GIB, (Device(0, "GPU-a", 16160), Device(1, "GPU-b", 16160))
)
#: The same node while only its capacity is known: another agent's node, or its description was removed.
BY_INDEX = NodeDevices(
    "n1",
    NodeMode.SHARE,
    MemoryUnit.GIB,
    tuple(Device(index, index_uuid("n1", index), 15 * 1024) for index in (0, 1)),
)


def used(ledger: Ledger) -> list[tuple[int, int]]:
    return [(gpu.used_mib, gpu.used_units) for gpu in ledger.usage("n1").gpus]


def test_a_pod_bound_before_its_gpu_had_a_uuid_holds_that_gpu_afterwards() -> None:
    ledger = Ledger()
    ledger.set_node(BY_INDEX)
    ledger.reserve("u1", "default/a", asks(15), "n1")
    assert used(ledger) == [(15360, 15), (0, 0)]
    ledger.set_node(DESCRIBED)
    assert used(ledger) == [(16160, 15), (0, 0)]
    assert ledger.usage("n1").pending == ()
    assert ledger.reserve("u2", "default/b", asks(15), "n1").gpus[0].uuid == "GPU-b"
    with pytest.raises(Refused, match="every GPU is full"):
        ledger.reserve("u3", "default/c", asks(1), "n1")


def test_gpus_stay_allocated_while_their_description_is_missing() -> None:
    ledger = Ledger()
    ledger.set_node(DESCRIBED)
    ledger.reserve("u1", "default/a", asks(15), "n1")
    ledger.reserve("u2", "default/b", asks(2), "n1")
    ledger.set_node(BY_INDEX)
    assert used(ledger) == [(15360, 15), (2048, 2)]
    with pytest.raises(Refused, match=r"largest free: 13 GiB on GPU 1"):
        ledger.reserve("u3", "default/c", asks(14), "n1")
    assert ledger.release("u1")
    assert used(ledger) == [(0, 0), (2048, 2)]
    ledger.set_node(DESCRIBED)
    assert used(ledger) == [(0, 0), (2154, 2)]
    ledger.remove_node("n1")
    assert [one.share.uuid for one in ledger.usage("n1").pending] == ["GPU-b"]
    assert ledger.release("u2")
    assert ledger.totals() == Ledger().totals()
    assert not ledger._books.nodes


def test_a_replacement_gpu_with_the_same_index_is_another_gpu() -> None:
    ledger = Ledger()
    ledger.set_node(DESCRIBED)
    ledger.reserve("u1", "default/a", asks(15), "n1")
    fresh = NodeDevices("n1", NodeMode.SHARE, MemoryUnit.GIB, (Device(0, "GPU-new", 16160),))
    ledger.set_node(fresh)
    assert used(ledger) == [(0, 0)]
    assert [one.share.uuid for one in ledger.usage("n1").pending] == ["GPU-a"]


def test_an_index_that_the_node_does_not_have_stays_pending() -> None:
    ledger = Ledger()
    ledger.hold("u1", "default/a", "n1", holding(share(index_uuid("n1", 7), 1024, index=7)))
    ledger.hold("u2", "default/b", "n1", holding(share(index_uuid("other", 0), 1024, index=0)))
    for node in (DESCRIBED, BY_INDEX):
        ledger.set_node(node)
        assert used(ledger)[1] == (0, 0)
    assert [one.share.index for one in ledger.usage("n1").pending] == [7]
