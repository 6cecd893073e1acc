"""What a kubelet offers, in Kubernetes' spellings of amounts."""

import pytest

from gpushare.api import names
from gpushare.api.node.device import Device, devices_annotation
from gpushare.api.node.modes import NodeMode
from gpushare.api.quantity import MemoryUnit
from gpushare.doctor.cluster.checks.nodes import node_capacity
from tests.unit.doctor.healthy_cluster import node_of, sound


@pytest.mark.parametrize(
    ("core", "says"),
    [
        ("1000", []),
        ("1k", []),
        ("900", ["its kubelet offers 900 of aliyun.com/gpu-core.percentage instead of 1000"]),
        ("?", ["its kubelet offers ? of aliyun.com/gpu-core.percentage instead of 1000"]),
    ],
)
def test_an_amount_may_be_written_with_a_suffix(core: str, says: list[str]) -> None:
    gpus = tuple(Device(number, f"GPU-{number}", 16160) for number in range(10))
    described = {names.ANN_DEVICES: devices_annotation(NodeMode.CORE_MEM, MemoryUnit.GIB, gpus)}
    node = node_of(
        mode=NodeMode.CORE_MEM,
        annotations=described,
        labels={names.LABEL_MODE: NodeMode.CORE_MEM.value},
        allocatable={names.GPU_MEM: "150", names.GPU_CORE: core},
    )
    assert [one.message for one in node_capacity(sound(nodes=[node]))] == says
