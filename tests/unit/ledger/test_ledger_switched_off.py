"""A node whose label was taken away keeps what its pods hold, and takes nothing new."""

import pytest

from gpushare.api import names
from gpushare.api.node.device import devices_annotation, node_devices
from gpushare.api.node.modes import NodeMode
from gpushare.api.objects import Node, NodeStatus, ObjectMeta
from gpushare.api.quantity import MemoryUnit
from gpushare.ledger import Ledger, Refused
from tests.unit.ledger.ledger_samples import T4, asks, gpus


def seen(labelled: str | None, described: NodeMode | None) -> Node:
    annotations = {}
    if described is not None:
        annotations[names.ANN_DEVICES] = devices_annotation(described, MemoryUnit.GIB, gpus("n1", T4, T4))
    labels = {} if labelled is None else {names.LABEL_MODE: labelled}
    return Node(ObjectMeta(name="n1", labels=labels, annotations=annotations), status=NodeStatus())


@pytest.mark.parametrize("label", [None, "default"])
def test_what_is_held_stays_counted_from_the_labels_removal_to_the_last_pods_end(label: str | None) -> None:
    ledger = Ledger()
    sharing = node_devices(seen("share", NodeMode.SHARE))
    assert sharing is not None
    ledger.set_node(sharing)
    held = ledger.reserve("a", "default/a", asks(3), "n1")
    ledger.hold("a", "default/a", "n1", held)
    for described, says in (
        (NodeMode.SHARE, "node is switching from share to default"),
        (NodeMode.DEFAULT, "node shares no GPU memory (it is in mode default"),
    ):
        now = node_devices(seen(label, described))
        assert now is not None
        ledger.set_node(now)
        assert bool(now.refusal) == (described is NodeMode.SHARE)
        assert [gpu.used_mib for gpu in ledger.usage("n1").gpus] == [held.mib, 0]
        with pytest.raises(Refused) as refusal:
            ledger.reserve("b", "default/b", asks(1), "n1")
        assert refusal.value.hopeless
        assert refusal.value.reason.startswith(says)
    ledger.release("a")
    assert node_devices(seen(label, None)) is None
