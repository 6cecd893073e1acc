"""Whether a new node of a kind would hold a request: with its GPUs empty and healthy."""

import msgspec
import pytest

from gpushare.api.node.device import Device, NodeDevices
from gpushare.api.node.modes import NodeMode
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.request import ContainerKind, ContainerRequest, Request
from gpushare.ledger.fit.empty_node import would_hold


def node(*sizes_mib: int, mode: NodeMode = NodeMode.SHARE, **more: object) -> NodeDevices:
    devices = tuple(Device(index, f"GPU-{index}", mib) for index, mib in enumerate(sizes_mib))
    return msgspec.structs.replace(NodeDevices("n", mode, MemoryUnit.GIB, devices), **more)


def asks(units: int, gpus: int = 1, core: int = 0) -> Request:
    return Request(units, core, (ContainerRequest("c", ContainerKind.APP, 0, units, core),), gpus)


@pytest.mark.parametrize(
    ("there", "request_", "holds"),
    [
        (node(16384, 16384), asks(16), True),
        (node(16384, 16384), asks(20), False),
        (node(16384, 16384), asks(16, gpus=2), True),
        (node(16384), asks(8, core=50), False),
        (node(16384, mode=NodeMode.CORE_MEM), asks(8, core=50), True),
        (node(16384, refusal="its label and its agent name different modes"), asks(16), True),
    ],
)
def test_it_is_said_of_the_gpus_alone(there: NodeDevices, request_: Request, holds: bool) -> None:
    assert would_hold(there, request_) is holds


def test_what_is_wrong_with_this_one_is_not_wrong_with_a_new_one() -> None:
    broken = node(16384)
    (gpu,) = broken.devices
    for wrong in ({"healthy": False, "reason": "lost"}, {"cordoned": True}, {"foreign_mib": 9000}):
        device = msgspec.structs.replace(gpu, **wrong)
        assert would_hold(msgspec.structs.replace(broken, devices=(device,)), asks(16))
