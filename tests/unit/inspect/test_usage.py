import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.api import names
from gpushare.api.allocation.allocation import GpuShare, share_of
from gpushare.api.node.device import index_uuid
from gpushare.api.node.modes import NodeMode
from gpushare.api.objects import Node, NodeStatus, ObjectMeta, Pod, ResourceRequirements
from gpushare.api.quantity import MemoryUnit
from gpushare.inspect.views.allocation_model import ClusterUsage, percent, usage_of
from tests.unit.inspect.clusters import (
    device,
    first_generation,
    foreign_node,
    node,
    placed,
    pod,
    seen,
    with_allocation,
)

GIB, SMALL = MemoryUnit.GIB, MemoryUnit.MIB_128


def figures(cluster: ClusterUsage) -> dict[str, list[str]]:
    return {one.name: [f"{gpu.used_units}/{gpu.total_units}" for gpu in one.gpus] for one in cluster.nodes}


def test_pods_are_ordered_by_gpu_and_those_on_none_come_last() -> None:
    nodes = [foreign_node("n", "10.0.0.1", 2, 15)]
    pods = [
        pod("a", "n", 1),
        pod("b", "n", 1, first_generation(1, 1)),
        pod("c", "n", 1, first_generation(0, 1)),
        pod("d", "n", 1, first_generation(1, 1)),
    ]
    assert [one.name for one in seen(nodes, pods).nodes[0].pods] == ["c", "b", "d", "a"]


def test_memory_on_no_gpu_yet_counts_for_the_node() -> None:
    cluster = seen([foreign_node("n", "10.0.0.1", 2, 15)], [pod("a", "n", 5), pod("b", "n", 2)])
    (one,) = cluster.nodes
    assert (one.has_pending, one.pending_units, one.used_units, one.total_units) == (True, 7, 7, 30)
    assert figures(cluster) == {"n": ["0/15", "0/15"]}


def test_a_pod_pending_for_several_gpus_counts_with_its_whole_request() -> None:
    waiting = pod("a", "n", 6, labels={names.LABEL_POD_GPU_COUNT: "2"})
    assert seen([foreign_node("n", "10.0.0.1", 2, 15)], [waiting]).nodes[0].pending_units == 6


def test_a_pod_pending_for_a_gpu_per_container_counts_with_the_compute_of_all() -> None:
    waiting = pod("a", "n", 6, core_percent=30, labels={names.LABEL_POD_APART: "true"})
    (main,) = waiting.spec.containers
    waiting.spec.containers = [main, msgspec.structs.replace(main, name="other")]
    (seen_node,) = seen(
        [node("n", "10.0.0.1", [device(0), device(1)], mode=NodeMode.CORE_MEM)], [waiting]
    ).nodes
    assert (seen_node.pending_units, seen_node.pending_core_percent) == (12, 60)


def test_whole_gpus_are_shown_as_full() -> None:
    gpus = [device(0), device(1), device(2)]
    labels = {names.LABEL_POD_GPU_COUNT: "2", names.LABEL_POD_PLACEMENT: names.POD_PLACEMENT_WHOLE_DEVICE}
    shares = [share_of(gpu, 15, 15, 0) for gpu in gpus[1:]]
    whole = with_allocation(pod("a", "n", 6, labels=labels), shares, GIB)
    assert figures(seen([node("n", "10.0.0.1", gpus)], [whole])) == {"n": ["0/15", "15/15", "15/15"]}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_finished_pods_hold_nothing(phase: str) -> None:
    nodes = [foreign_node("n", "10.0.0.1", 1, 15)]
    assert figures(seen(nodes, [pod("a", "n", 5, first_generation(0, 5), phase=phase)])) == {"n": ["0/15"]}


def test_pods_without_a_node_or_without_our_resource_are_not_counted() -> None:
    nodes = [foreign_node("n", "10.0.0.1", 1, 15)]
    other = pod("other", "n", 0)
    assert figures(seen(nodes, [pod("waiting", "", 5), other, pod("elsewhere", "m", 5)])) == {"n": ["0/15"]}
    assert seen(nodes, [other]).nodes[0].pods == ()


def test_allocations_in_another_unit_are_converted_once_per_gpu() -> None:
    gpu = device(0)
    small = [placed(f"p{number}", "n", gpu, 1, unit=SMALL) for number in range(8)]
    cluster = seen([node("n", "10.0.0.1", [gpu], unit=GIB)], small)
    assert figures(cluster) == {"n": ["1/15"]}
    assert [one.shares[0].units for one in cluster.nodes[0].pods] == [1] * 8
    assert cluster.nodes[0].gpus[0].used_mib == 8 * 128


@given(
    total_mib=st.integers(2048, 200_000),
    allocated_in=st.sampled_from(list(MemoryUnit)),
    shown_in=st.sampled_from(list(MemoryUnit)),
    data=st.data(),
)
def test_figures_are_never_above_the_total_and_never_too_small(
    total_mib: int, allocated_in: MemoryUnit, shown_in: MemoryUnit, data: st.DataObject
) -> None:
    gpu = device(0, total_mib)
    free = allocated_in.count_in(total_mib)
    requested: list[int] = []
    while free and len(requested) < 5:
        requested.append(data.draw(st.integers(1, free)))
        free -= requested[-1]
    pods = [placed(f"p{n}", "n", gpu, units, unit=allocated_in) for n, units in enumerate(requested)]
    shown = seen([node("n", "10.0.0.1", [gpu], unit=shown_in)], pods).nodes[0].gpus[0]
    assert shown.used_units <= shown.total_units == shown_in.count_in(total_mib)
    assert shown.used_units * total_mib >= shown.used_mib * shown.total_units
    if allocated_in is shown_in:
        assert shown.used_units == allocated_in.count_in(total_mib) - free


def test_compute_is_counted_if_the_node_has_it() -> None:
    gpus = [device(0), device(1)]
    nodes = [node("core", "10.0.0.1", gpus, mode=NodeMode.CORE_MEM), node("mem", "10.0.0.2", gpus)]
    pods = [placed(f"p{n}", "core", gpus[0], 2, core_percent=30) for n in range(3)]
    pods.append(pod("waiting", "core", 1, core_percent=5))
    core, mem = seen(nodes, pods).nodes
    assert [gpu.used_core_percent for gpu in core.gpus] == [90, 0]
    assert (core.used_core_percent, core.total_core_percent, core.pending_core_percent) == (95, 200, 5)
    assert mem.total_core_percent == 0


def test_nodes_without_gpu_memory_are_not_shown() -> None:
    plain = foreign_node("plain", "10.0.0.1", 0, 0)
    switched = node("switched", "10.0.0.2", [device(0)], advertised=False)
    assert seen([plain, switched]).nodes == ()


def test_node_that_advertises_nothing_is_shown_while_pods_hold_its_gpus() -> None:
    gpu = device(0)
    switched = node("n", "10.0.0.2", [gpu], advertised=False)
    assert figures(seen([switched], [placed("a", "n", gpu, 3)])) == {"n": ["3/15"]}


def test_node_that_no_longer_shares_keeps_its_figures_while_pods_hold_memory() -> None:
    gpu = device(0)
    off = node("n", "10.0.0.2", [gpu], mode=NodeMode.DEFAULT, advertised=False)
    assert seen([off]).nodes == ()
    (one,) = seen([off], [placed("a", "n", gpu, 3, core_percent=30)]).nodes
    assert (one.used_units, one.total_units, one.devices.mode) == (3, 15, NodeMode.DEFAULT)
    assert (one.used_core_percent, one.total_core_percent) == (30, 100)
    assert one.closed == "node shares no GPU memory (it is in mode default, label ack.node.gpu.schedule)"


def test_malformed_pod_is_named_and_not_guessed() -> None:
    nodes = [foreign_node("n", "10.0.0.1", 1, 15)]
    broken = pod("broken", "n", 3, {names.ANN_ALLOCATION: "{", names.ANN_ASSIGNED: "true"})
    cluster = usage_of(nodes, [broken, pod("whole", "n", 2, first_generation(0, 2))])
    assert figures(cluster) == {"n": ["2/15"]}
    (warning,) = cluster.warnings
    assert warning.startswith(
        "pod default/broken: annotation scheduler.framework.gpushare.allocation is not JSON"
    )
    assert warning.endswith("it is not counted: delete the pod, so that it is placed again")


def test_pod_whose_request_breaks_the_rules_is_named() -> None:
    cluster = usage_of([foreign_node("n", "10.0.0.1", 1, 15)], [pod("odd", "n", 3, core_percent=7)])
    (warning,) = cluster.warnings
    assert "pod default/odd: aliyun.com/gpu-core.percentage must be a multiple of 5" in warning


def test_pod_on_a_missing_gpu_is_named() -> None:
    gone = GpuShare("GPU-gone", 0, 3 * 1024, 3, 15)
    lost = with_allocation(pod("lost", "n", 3), [gone], GIB)
    cluster = usage_of([node("n", "10.0.0.1", [device(0)])], [lost])
    assert figures(cluster) == {"n": ["0/15"]}
    (warning,) = cluster.warnings
    assert "pod default/lost: holds 3072 MiB of GPU 0 (GPU-gone), which node n no longer has" in warning


def test_our_pods_on_an_undescribed_node_are_found_by_index() -> None:
    share = GpuShare("GPU-real", 1, 3 * 1024, 3, 15)
    ours = with_allocation(pod("a", "n", 3), [share], GIB)
    assert figures(seen([foreign_node("n", "10.0.0.1", 2, 15)], [ours])) == {"n": ["0/15", "3/15"]}


def test_our_pods_from_before_the_node_was_described_are_found_by_index() -> None:
    share = GpuShare(index_uuid("n", 1), 1, 3 * 1024, 3, 15)
    ours = with_allocation(pod("a", "n", 3), [share], GIB)
    assert figures(seen([node("n", "10.0.0.1", [device(0), device(1)])], [ours])) == {"n": ["0/15", "3/15"]}


def test_a_node_that_offers_nothing_because_of_a_misspelt_label_is_named() -> None:
    """Its agent withdraws what it offered: without a warning the node would vanish from the table."""
    mislabelled = Node(
        metadata=ObjectMeta(name="slip", labels={names.LABEL_MODE: "cgpuu"}),
        status=NodeStatus(capacity={names.GPU_MEM: "0"}),
    )
    without = Node(metadata=ObjectMeta(name="without", labels={names.LABEL_MODE: "topology"}))
    cluster = usage_of([mislabelled, without, foreign_node("fine", "10.0.0.2", 1, 15)], [])
    assert figures(cluster) == {"fine": ["0/15"]}
    (warning,) = cluster.warnings
    assert warning.startswith("node slip: label ack.node.gpu.schedule=cgpuu is unknown; use one of ")
    assert warning.endswith("; the node is left out")


@pytest.mark.parametrize(
    ("units_per_gpu", "label", "unit"),
    [
        (15, "16160MiB", GIB),
        (126, "16160MiB", SMALL),
        (126, None, GIB),
        (126, "many", GIB),
        (7, "16160MiB", GIB),
    ],
)
def test_unit_of_a_foreign_node_follows_from_the_size_of_its_gpus(
    units_per_gpu: int, label: str | None, unit: MemoryUnit
) -> None:
    labels = {} if label is None else {"aliyun.accelerator/nvidia_mem": label}
    cluster = seen([foreign_node("n", "10.0.0.1", 2, units_per_gpu, labels)])
    assert cluster.nodes[0].unit is unit
    assert figures(cluster) == {"n": [f"0/{units_per_gpu}"] * 2}


def test_node_with_a_misspelt_label_is_shown_and_named() -> None:
    mislabelled = node("n", "10.0.0.1", [device(0)])
    assert mislabelled.metadata.labels is not None
    mislabelled.metadata.labels[names.LABEL_MODE] = "sharre"
    cluster = usage_of([mislabelled], [placed("a", "n", device(0), 3)])
    assert figures(cluster) == {"n": ["3/15"]}
    (warning,) = cluster.warnings
    assert warning.startswith("node n: label ack.node.gpu.schedule=sharre is unknown; use one of")
    assert warning.endswith("; until then no new pods are placed there")


def test_node_without_an_internal_address_is_shown_as_unknown() -> None:
    lonely = foreign_node("n", "10.0.0.1", 1, 15)
    lonely.status.addresses = None
    assert seen([lonely]).nodes[0].address == "unknown"


@given(st.integers(0, 10**9), st.integers(1, 10**9))
def test_percent_is_cut_off(used: int, total: int) -> None:
    assert percent(used, total) * total <= used * 100 < (percent(used, total) + 1) * total


def counting(name: str, gpus: list[int]) -> Pod:
    """A pod that has whole GPUs of node ``n`` by index; without any it has no record yet."""
    waiting = pod(name, "n", 0)
    waiting.spec.containers[0].resources = ResourceRequirements(limits={names.GPU_WHOLE: str(len(gpus) or 1)})
    return (
        with_allocation(waiting, [share_of(device(at), 15, 15, 0) for at in gpus], GIB) if gpus else waiting
    )


def test_whole_gpus_by_number_are_no_memory_and_not_shown() -> None:
    there = node("n", "10.0.0.1", [device(0), device(1)], mode=NodeMode.TOPOLOGY, advertised=False)
    assert seen([there], [counting("a", [0]), counting("waits", [])]).nodes == ()


def test_whole_gpus_are_also_counted_where_memory_is_shared() -> None:
    gpus = [device(0), device(1), device(2)]
    pods = [counting("a", [0, 2]), counting("waits", []), placed("b", "n", gpus[1], 3)]
    for mode in (NodeMode.SHARE, NodeMode.TOPOLOGY):  # mode changed to or from it while pods are running
        there = node("n", "10.0.0.1", gpus, mode=mode, advertised=mode.shares_memory)
        cluster = seen([there], pods)
        assert figures(cluster) == {"n": ["15/15", "3/15", "15/15"]}
        assert not cluster.nodes[0].has_pending


def test_an_unreadable_request_does_not_hide_what_its_pod_holds() -> None:
    gpu = device(0)
    broken = placed("a", "n", gpu, 3)
    assert broken.metadata.labels is not None
    broken.metadata.labels[names.LABEL_POD_GPU_COUNT] = "none"
    there = node("n", "10.0.0.1", [gpu], mode=NodeMode.DEFAULT, advertised=False)
    assert figures(seen([there], [broken])) == {"n": ["3/15"]}
