"""The doctor names pods that are held to less than a CUDA context takes."""

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


def told(*pods: Pod, **changes: Any) -> list[tuple[str, str, str]]:
    return [
        (one.state, one.subject, one.message.partition(";")[0])
        for one in pod_shares(sound(pods=list(pods), **changes))
    ]


def test_a_pod_that_has_less_there_is_named_with_node_and_both_amounts() -> None:
    little = gpu_pod("little", annotations=held(384))
    enough = gpu_pod("enough", annotations=held(1024))
    said = (
        "warning",
        "pod default/little",
        "container c has 384 MiB of GPU 0 of node n1, less than the 518 MiB that a CUDA context takes there",
    )
    assert told(little, enough, nodes=[a_node(518)]) == [said]


def test_a_pod_that_waits_is_named_by_what_was_measured_and_before_by_what_may_be() -> None:
    waits = gpu_pod("waits", node="")
    ((_, _, measured),) = told(waits, nodes=[a_node(518)])
    assert measured.startswith("container c would get 384 MiB of a GPU of node n1, less than the 518 MiB")
    ((_, _, guessed),) = told(waits, nodes=[a_node(0)])
    assert guessed.startswith("less of each GPU than a CUDA context may take")
    assert told(waits, nodes=[a_node(110)]) == []


def test_trusting_nodes_finished_pods_and_unreadable_records_are_not_reported() -> None:
    little, waits = gpu_pod("little", annotations=held(384)), gpu_pod("waits", node="")
    assert told(little, waits, nodes=[a_node(518, NodeMode.SHARE)]) == []
    little.status.phase = "Succeeded"
    broken = gpu_pod("broken", annotations={names.ANN_SHARE: json.dumps({"version": 9})})
    assert told(little, broken, nodes=[a_node(518)]) == []
