"""Nodes on which two device plugins allocate the same GPUs."""

from gpushare.doctor.cluster.registry import CHECKS
from gpushare.doctor.findings import examine
from tests.unit.doctor.healthy_cluster import node_of, sound


def test_a_node_whose_gpus_another_plugin_also_offers_is_a_fault_with_what_to_do() -> None:
    both, other = node_of("both"), node_of("other", labels={}, annotations={}, allocatable={})
    for node in (both, other):
        node.node.status.capacity = {"nvidia.com/gpu": "8", "aliyun.com/gpu-mem": "15"}
    found = [
        one for one in examine(sound(nodes=[node_of(), both, other]), CHECKS) if one.check == "other-plugins"
    ]
    (fault,) = found
    assert (fault.state, fault.subject) == ("fault", "node both")
    assert "nvidia.com/gpu: 8" in fault.message
    assert "kubectl label node both nvidia.com/gpu.deploy.device-plugin=false" in fault.suggestion


def test_nodes_of_other_plugins_are_left_alone() -> None:
    other = node_of("other", labels={}, annotations={}, allocatable={})
    other.node.status.capacity = {"nvidia.com/gpu": "8"}
    assert [
        one.state for one in examine(sound(nodes=[node_of(), other]), CHECKS) if one.check == "other-plugins"
    ] == ["ok"]
