"""The doctor names pods whose limit is below the size of a CUDA context."""

import json
from typing import Any

from gpushare.api import names
from gpushare.api.node.device import Device, devices_annotation
from gpushare.api.node.modes import NodeMode
from gpushare.api.objects import Pod
from gpushare.api.quantity import MemoryUnit
from gpushare.doctor.cluster.checks.shares import pod_shares
from gpushare.doctor.cluster.facts import SeenNode
from tests.unit.doctor.healthy_cluster import gpu_pod, held, node_of, sound


def a_node(context_mib: int, mode: NodeMode = NodeMode.CGPU) -> SeenNode:
    gpu = Device(0, "GPU-1", 16160, context_mib=context_mib)
    described = {names.ANN_DEVICES: devices_annotation(mode, MemoryUnit.MIB_128, (gpu,))}
    return node_of(mode=mode, annotations=described, labels={names.LABEL_MODE: mode.value})


def problems(*pods: Pod, **changes: Any) -> list[tuple[str, str, str]]:
    return [
        (one.state, one.subject, one.message.partition(";")[0])
        for one in pod_shares(sound(pods=list(pods), **changes))
    ]


def test_a_pod_with_less_memory_is_named_with_node_and_both_amounts() -> None:
    little = gpu_pod("little", annotations=held(384))
    enough = gpu_pod("enough", annotations=held(1024))
    expected = (
        "warning",
        "pod default/little",
        "container c has 384 MiB of GPU 0 of node n1, less than the 518 MiB that a CUDA context takes there",
    )
    assert problems(little, enough, nodes=[a_node(518)]) == [expected]


def test_a_pending_pod_is_compared_with_measured_values_or_else_with_estimates() -> None:
    waits = gpu_pod("waits", node="")
    ((_, _, measured),) = problems(waits, nodes=[a_node(518)])
    assert measured.startswith("container c would get 384 MiB of a GPU of node n1, less than the 518 MiB")
    ((_, _, guessed),) = problems(waits, nodes=[a_node(0)])
    assert guessed.startswith("the request may be too small for a CUDA context")
    assert problems(waits, nodes=[a_node(110)]) == []


def test_trusting_nodes_finished_pods_and_unreadable_records_are_not_reported() -> None:
    little, waits = gpu_pod("little", annotations=held(384)), gpu_pod("waits", node="")
    assert problems(little, waits, nodes=[a_node(518, NodeMode.SHARE)]) == []
    little.status.phase = "Succeeded"
    broken = gpu_pod("broken", annotations={names.ANN_SHARE: json.dumps({"version": 9})})
    assert problems(little, broken, nodes=[a_node(518)]) == []
