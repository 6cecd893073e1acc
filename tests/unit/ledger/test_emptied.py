"""Whether a new node of a kind would fit a request: with its GPUs empty and healthy."""

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


def request_for(units: int, gpus: int = 1, core: int = 0) -> Request:
    return Request(units, core, (ContainerRequest("c", ContainerKind.APP, 0, units, core),), gpus)


@pytest.mark.parametrize(
    ("existing", "request_", "fits"),
    [
        (node(16384, 16384), request_for(16), True),
        (node(16384, 16384), request_for(20), False),
        (node(16384, 16384), request_for(16, gpus=2), True),
        (node(16384), request_for(8, core=50), False),
        (node(16384, mode=NodeMode.CORE_MEM), request_for(8, core=50), True),
        (node(16384, refusal="its label and its agent name different modes"), request_for(16), True),
    ],
)
def test_only_the_gpus_decide_whether_a_new_node_fits_a_request(
    existing: NodeDevices, request_: Request, fits: bool
) -> None:
    assert would_hold(existing, request_) is fits


def test_faults_of_an_existing_gpu_do_not_count_for_a_new_node() -> None:
    broken = node(16384)
    (gpu,) = broken.devices
    for fault in ({"healthy": False, "reason": "lost"}, {"cordoned": True}, {"foreign_mib": 9000}):
        device = msgspec.structs.replace(gpu, **fault)
        assert would_hold(msgspec.structs.replace(broken, devices=(device,)), request_for(16))
