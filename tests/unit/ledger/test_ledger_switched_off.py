"""A node whose label was removed keeps the allocations of its pods and takes no new pods."""

import pytest

from gpushare.api import names
from gpushare.api.node.device import devices_annotation, node_devices
from gpushare.api.node.modes import NodeMode
from gpushare.api.objects import Node, NodeStatus, ObjectMeta
from gpushare.api.quantity import MemoryUnit
from gpushare.ledger import Ledger, Refused
from tests.unit.ledger.ledger_samples import T4, asks, gpus


def node_with(labelled: str | None, described: NodeMode | None) -> Node:
    annotations = {}
    if described is not None:
        annotations[names.ANN_DEVICES] = devices_annotation(described, MemoryUnit.GIB, gpus("n1", T4, T4))
    labels = {} if labelled is None else {names.LABEL_MODE: labelled}
    return Node(ObjectMeta(name="n1", labels=labels, annotations=annotations), status=NodeStatus())


@pytest.mark.parametrize("label", [None, "default"])
def test_allocations_stay_counted_from_removal_of_the_label_until_the_last_pod_ends(
    label: str | None,
) -> None:
    ledger = Ledger()
    sharing = node_devices(node_with("share", NodeMode.SHARE))
    assert sharing is not None
    ledger.set_node(sharing)
    allocation = ledger.reserve("a", "default/a", asks(3), "n1")
    ledger.hold("a", "default/a", "n1", allocation)
    for described, expected in (
        (NodeMode.SHARE, "node is switching from share to default"),
        (NodeMode.DEFAULT, "node shares no GPU memory (it is in mode default"),
    ):
        devices = node_devices(node_with(label, described))
        assert devices is not None
        ledger.set_node(devices)
        assert bool(devices.refusal) == (described is NodeMode.SHARE)
        assert [gpu.used_mib for gpu in ledger.usage("n1").gpus] == [allocation.mib, 0]
        with pytest.raises(Refused) as refusal:
            ledger.reserve("b", "default/b", asks(1), "n1")
        assert refusal.value.hopeless
        assert refusal.value.reason.startswith(expected)
    ledger.release("a")
    assert node_devices(node_with(label, None)) is None
