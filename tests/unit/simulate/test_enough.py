"""How many more nodes suffice, and the shapes of such nodes."""

import pytest

from gpushare.api import names
from gpushare.api.node.device import Device, devices_annotation
from gpushare.api.node.modes import NodeMode
from gpushare.api.quantity import MemoryUnit
from gpushare.simulate.engine.engine import Settings
from gpushare.simulate.engine.min_nodes import enough
from gpushare.simulate.engine.simulation import simulate
from gpushare.simulate.errors import SimulateError
from gpushare.simulate.input.manifests import manifests_of
from gpushare.simulate.input.node_shapes import nodes_of, shape_of, shapes_there
from gpushare.simulate.snapshot import ClusterState, counting_of
from tests.unit.simulate.objects import node, pod, ran, template, workload

T4 = 16160
STATE = ClusterState((node("a", T4), node("b", T4), node("big", T4, T4, mode="cgpu"), node("plain")))


def found(shape: str, *documents: object, state: ClusterState = STATE) -> tuple[int, list[str], int]:
    wanted = manifests_of([("t", one) for one in documents], state, counting_of(state)).pods  # type: ignore[misc]
    runs: list[str] = []
    result = enough(state, wanted, Settings(), shape_of(shape, state), on_run=runs.append)
    assert len(runs) == result.runs
    if result.count:
        less = ClusterState((*state.nodes, *nodes_of(result.shape, result.count - 1)))
        assert len(simulate(less, wanted, Settings()).waiting) > len(result.still_waiting)
    return result.count, [fate.pod for fate in result.still_waiting], result.runs


@pytest.mark.parametrize("pods", [1, 4, 5, 9, 40])
def test_the_result_is_the_smallest_sufficient_number(pods: int) -> None:
    count, still, runs = found("gpus=2,memory=16160", workload("Deployment", "web", pods, template(15)))
    assert count == max(-(-(pods - 4) // 2), 0)
    assert not still
    assert runs <= 16


def test_other_pods_may_prefer_new_nodes_and_leave_theirs_to_the_pending_pod() -> None:
    """Pods with memory only close a node to compute only where no other node has room."""
    state = ClusterState((node("a", T4), node("c", *[T4] * 4, mode="core_mem")))
    documents = workload("Deployment", "web", 5, template(15)), pod("core", 2, 30)
    assert found("a", *documents, state=state)[:2] == (4, [])


def test_a_gang_and_several_gpus_need_whole_nodes() -> None:
    gang = {names.LABEL_GANG_NAME: "g", names.LABEL_GANG_LEAST: "6"}
    assert found("a", workload("Job", "gang", 6, template(15, labels=gang)))[0] == 2
    four = pod("four", 60, labels={names.LABEL_POD_GPU_COUNT: "4"})
    assert found("gpus=4,memory=16160", four)[:2] == (1, [])


def test_nodes_like_one_with_mig_instances_have_instances() -> None:
    migged = node("mig", 9728, 9728)
    instances = (Device(16, "MIG-a", 9728), Device(19, "MIG-b", 9728))
    migged["metadata"]["annotations"][names.ANN_DEVICES] = devices_annotation(
        NodeMode.SHARE, MemoryUnit.GIB, instances
    )
    two = pod("two", 8, labels={names.LABEL_POD_GPU_COUNT: "2"})
    state = ClusterState((migged,))
    assert found("mig", two, state=state)[:2] == (0, ["default/two"])


def test_pods_that_no_number_of_nodes_helps_are_named() -> None:
    count, still, _ = found(
        "a", pod("huge", 99), workload("Deployment", "web", 6, template(15)), pod("no", 1, 33)
    )
    assert (count, still) == (2, ["default/huge", "default/no"])
    assert found("a", pod("huge", 99))[:2] == (0, ["default/huge"])
    assert found("a", pod("small", 1))[:2] == (0, [])


def test_existing_kinds_are_listed_once() -> None:
    assert [shape.text for shape in shapes_there(STATE)] == ["like a", "like big"]


def test_a_node_like_another_is_healthy_and_empty() -> None:
    worn = node("worn", T4, kind="x")
    devices = (Device(0, "GPU-1", T4, healthy=False, reason="XID 79", foreign_mib=100),)
    worn["metadata"]["annotations"] = {
        names.ANN_DEVICES: devices_annotation(NodeMode.SHARE, MemoryUnit.GIB, devices),
        names.ANN_CORDONED: "0",
    }
    worn["spec"] = {
        "taints": [
            {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"},
            {"key": "mine", "effect": "PreferNoSchedule"},
        ]
    }
    worn["status"]["allocatable"][names.GPU_MEM] = "0"
    state = ClusterState((worn,))
    (made,) = nodes_of(shape_of("worn", state), 1)
    assert made["metadata"]["labels"] == {
        names.LABEL_MODE: "share",
        "kubernetes.io/hostname": "added-1",
        "kind": "x",
    }
    assert made["spec"] == {"taints": [{"key": "mine", "effect": "PreferNoSchedule"}]}
    assert made["status"]["allocatable"][names.GPU_MEM] == "15"
    result = ran(ClusterState((made,)), pod("p", 15))
    assert result.fates[0].gpus[0].uuid == "GPU-added-1-0"


def test_a_described_shape_has_what_is_described_and_otherwise_ample_resources() -> None:
    shape = shape_of("gpus=2,memory=16160,mode=core_mem,unit=128MiB,cpu=4,ram=8Gi,pods=3,label.kind=x", STATE)
    (made,) = nodes_of(shape, 1)
    assert made["status"]["allocatable"] == {
        "cpu": "4",
        "memory": "8Gi",
        "pods": "3",
        names.GPU_MEM: "252",
        names.GPU_COUNT: "2",
        names.GPU_CORE: "200",
    }
    assert made["metadata"]["labels"]["kind"] == "x"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("unknown", "no node has that name; there are a, b"),
        ("plain", "no node agent has reported its GPUs"),
        ("gpus=2", "memory is a number"),
        ("gpus=0,memory=1", "gpus is a number from 1 to 128"),
        ("gpus=1,memory=1,colour=red", "'colour=red' is none of gpus"),
        ("gpus=1,memory=1,mode=odd", "odd"),
        ("gpus=1,memory=16160,mode=default", "offer no GPUs"),
        ("gpus=1,memory=16160,cpu=x", "x"),
    ],
)
def test_an_impossible_shape_is_rejected(text: str, expected: str) -> None:
    with pytest.raises(SimulateError, match=expected):
        shape_of(text, STATE)


def test_a_node_with_a_broken_description_is_not_a_shape() -> None:
    broken = node("b", T4)
    broken["metadata"]["annotations"][names.ANN_DEVICES] = "{"
    state = ClusterState((broken,))
    assert shapes_there(state) == []
    with pytest.raises(SimulateError, match="cannot be read"):
        shape_of("b", state)
