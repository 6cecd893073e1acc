"""Placement by the rules of HAMi and KAI Scheduler, on clusters small enough to compute by hand."""

import json
from pathlib import Path

import pytest

from gpushare.api import names
from gpushare.api.allocation.allocation import allocate_on
from gpushare.api.allocation.annotations import Stamp, allocation_annotations
from gpushare.api.json_objects import Json
from gpushare.api.node.device import Device, NodeDevices, Placement, described_devices, devices_annotation
from gpushare.api.node.modes import MODES
from gpushare.api.objects import decode_node, decode_pod
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.request import request_of
from gpushare.simulate.__main__ import main
from gpushare.simulate.engine.comparison import with_policy
from gpushare.simulate.engine.engine import Settings
from gpushare.simulate.engine.simulation import Result
from gpushare.simulate.peers.ledger import RULES
from gpushare.simulate.peers.names import PEERS
from gpushare.simulate.snapshot import ClusterState, snapshot_of
from tests.unit.simulate.objects import node, placed, pod, ran, template, workload

GIB = 1024
HAMI = [name for name in PEERS if name.startswith("hami")]


TABLE = """\
POLICY                PLACED  PENDING  GPU MEMORY ALLOCATED  GPUS IN USE
binpack               3       1        24/32 GiB (75%)       2/2
spread                2       2        8/32 GiB (25%)        2/2
fragmentation         3       1        24/32 GiB (75%)       2/2
hami-binpack-binpack  3       1        24/32 GiB (75%)       2/2
hami-binpack-spread   2       2        8/32 GiB (25%)        2/2
hami-spread-binpack   3       1        24/32 GiB (75%)       2/2
hami-spread-spread    2       2        8/32 GiB (25%)        2/2
kai-binpack           3       1        24/32 GiB (75%)       2/2
kai-spread            2       2        8/32 GiB (25%)        2/2

PENDING            PODS  POLICIES                                                     WHY
default/Pod huge   1     all                                                          0/1 nodes are available: 1 requests 20 GiB, but the largest GPU has 16 GiB.
default/Pod large  1     spread, hami-binpack-spread, hami-spread-spread, kai-spread  0/1 nodes are available: 1 no single GPU has 16 GiB free (largest free: 12 GiB on GPU 0).
"""


def bound(name: str, on: Json, gpu: int, gib: int, core: int = 0) -> Json:
    """A running pod with a share of one GPU of the node ``on``."""
    made = pod(name, gib, core or None)
    made["metadata"] |= {"namespace": "default", "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"}
    request, described = request_of(decode_pod(made)), described_devices(decode_node(on))
    assert request is not None
    assert described is not None
    mode, unit, devices = described
    devices_of_node = NodeDevices(on["metadata"]["name"], mode, unit, devices)
    allocation = allocate_on(devices_of_node, devices[gpu], request)
    made["metadata"]["annotations"] = allocation_annotations(allocation, request, Stamp(1, assigned=True))
    made["spec"] |= {"nodeName": on["metadata"]["name"], "schedulerName": names.SCHEDULER_NAME}
    made["status"] = {"phase": "Running"}
    return made


def under(name: str, nodes: tuple[Json, ...], *documents: Json) -> Result:
    return ran(ClusterState(nodes), *documents, settings=with_policy(Settings(), name))


def gpus(result: Result) -> dict[str, tuple[int, ...]]:
    """The indices of the GPUs of each pod, by name."""
    return {fate.pod.partition("/")[2]: tuple(share.index for share in fate.gpus) for fate in result.fates}


def test_every_name_has_a_rule_and_none_is_our_own_policy() -> None:
    assert set(RULES) == set(PEERS)
    assert set(PEERS).isdisjoint(placement.value for placement in Placement)


@pytest.mark.parametrize(
    ("policy", "chosen"),
    [
        ("binpack", 0),
        ("spread", 1),
        ("hami-binpack-binpack", 0),
        ("hami-binpack-spread", 1),
        ("hami-spread-binpack", 0),
        ("hami-spread-spread", 1),
        ("kai-binpack", 0),
        ("kai-spread", 1),
    ],
)
def test_a_second_pod_joins_the_first_or_takes_the_other_gpu(policy: str, chosen: int) -> None:
    made = node("n", 20 * GIB, 20 * GIB)
    state = ClusterState((made,), pods=(bound("first", made, 0, 6),))
    result = ran(state, pod("second", 6), settings=with_policy(Settings(), policy))
    assert gpus(result) == {"second": (chosen,)}


def test_hami_takes_the_gpu_with_the_highest_index_of_an_idle_node_and_kai_the_lowest() -> None:
    nodes = (node("n", 16 * GIB, 16 * GIB, 16 * GIB),)
    assert {name: gpus(under(name, nodes, pod("p", 4)))["p"] for name in PEERS} == {
        **dict.fromkeys(HAMI, (2,)),
        "kai-binpack": (0,),
        "kai-spread": (0,),
    }


def test_of_equal_gpus_hami_takes_the_one_with_the_highest_numa_node() -> None:
    devices = tuple(
        Device(index, f"GPU-n-{index}", 16 * GIB, numa_node=numa) for index, numa in enumerate((0, 1, 0))
    )
    made = node("n", 16 * GIB, 16 * GIB, 16 * GIB)
    made["metadata"]["annotations"] = {
        names.ANN_DEVICES: devices_annotation(MODES["share"], MemoryUnit.GIB, devices)
    }
    assert gpus(under("hami-binpack-spread", (made,), pod("p", 4)))["p"] == (1,)


def test_hami_counts_load_of_the_whole_node_where_we_count_what_is_left_on_the_gpu() -> None:
    # a: 12 of 16 GiB on one of four GPUs, 4 left there: load 1/40 + 12/64 = 0.21.
    # b: 8 of 16 GiB on its only GPU, 8 left: load 1/10 + 8/16 = 0.6.
    nodes = (node("a", *[16 * GIB] * 4), node("b", 16 * GIB))
    running = (bound("x", nodes[0], 0, 12), bound("y", nodes[1], 0, 8))
    state = ClusterState(nodes, pods=running)
    where = {
        name: placed(ran(state, pod("new", 4), settings=with_policy(Settings(), name)))["new"]
        for name in ("binpack", "hami-binpack-spread", "hami-spread-spread")
    }
    assert where == {"binpack": "a", "hami-binpack-spread": "b", "hami-spread-spread": "a"}


def test_hami_counts_many_small_pods_as_load() -> None:
    # Memory alone: a has 3 of 16 GiB, b 4. With parts in use a has 3/10 + 3/16 = 0.49, b 1/10 + 4/16 = 0.35.
    nodes = (node("a", 16 * GIB), node("b", 16 * GIB))
    small = tuple(bound(f"small-{number}", nodes[0], 0, 1) for number in range(3))
    state = ClusterState(nodes, pods=(*small, bound("y", nodes[1], 0, 4)))
    result = ran(state, pod("new", 4), settings=with_policy(Settings(), "hami-binpack-spread"))
    assert placed(result)["new"] == "a"


def test_hami_counts_compute_as_load() -> None:
    nodes = (node("a", 16 * GIB, mode="core_mem"), node("b", 16 * GIB, mode="core_mem"))
    running = (bound("x", nodes[0], 0, 2, 60), bound("y", nodes[1], 0, 8, 10))
    result = ran(
        ClusterState(nodes, pods=running),
        pod("new", 2, 10),
        settings=with_policy(Settings(), "hami-binpack-spread"),
    )
    # a: 0.1 + 0.6 + 2/16 = 0.825; b: 0.1 + 0.1 + 8/16 = 0.7.
    assert placed(result)["new"] == "a"


def test_kai_prefers_to_share_a_gpu_in_use_to_any_order_of_nodes() -> None:
    # b has fewer idle GPUs, but only a has room on a GPU in use.
    nodes = (node("a", *[16 * GIB] * 4), node("b", 16 * GIB, 16 * GIB))
    running = (bound("x", nodes[0], 0, 4), bound("y", nodes[1], 0, 14))
    state = ClusterState(nodes, pods=running)
    for name, chosen, gpu in (("kai-binpack", "a", 0), ("kai-spread", "a", 1)):
        result = ran(state, pod("new", 4), settings=with_policy(Settings(), name))
        assert (placed(result)["new"], gpus(result)["new"]) == (chosen, (gpu,))


def test_kai_takes_idle_gpus_of_the_node_with_the_fewest_of_them_then_by_name() -> None:
    nodes = (node("c", 16 * GIB), node("b", 16 * GIB), node("a", 16 * GIB, 16 * GIB))
    assert placed(under("kai-binpack", nodes, pod("new", 4)))["new"] == "b"
    assert placed(under("kai-spread", nodes, pod("new", 4)))["new"] == "a"


def test_kai_counts_all_gpus_in_use_alike_where_we_take_the_node_with_the_tightest() -> None:
    # Room on a GPU in use: both. Idle GPUs: none. By name a, though b would be filled completely.
    nodes = (node("a", 16 * GIB), node("b", 16 * GIB))
    running = (bound("x", nodes[0], 0, 4), bound("y", nodes[1], 0, 12))
    state = ClusterState(nodes, pods=running)
    where = {
        name: placed(ran(state, pod("new", 4), settings=with_policy(Settings(), name)))["new"]
        for name in ("binpack", "kai-binpack")
    }
    assert where == {"binpack": "b", "kai-binpack": "a"}


@pytest.mark.parametrize("name", PEERS)
def test_peers_choose_several_gpus_too(name: str) -> None:
    nodes = (node("n", *[16 * GIB] * 4, mode="cgpu"),)
    result = under(name, nodes, pod("two", 8, labels={names.LABEL_POD_GPU_COUNT: "2"}))
    assert len(gpus(result)["two"]) == 2


@pytest.mark.parametrize("name", PEERS)
def test_gangs_and_preemption_work_as_under_our_own_policies(name: str) -> None:
    nodes = (node("a", 16 * GIB), node("b", 16 * GIB))
    gang = template(10, labels={names.LABEL_GANG_NAME: "g", names.LABEL_GANG_LEAST: "2"})
    assert set(placed(under(name, nodes, workload("StatefulSet", "gang", 2, gang))).values()) == {"a", "b"}
    state = ClusterState(nodes, pods=(bound("low-a", nodes[0], 0, 9), bound("low-b", nodes[1], 0, 12)))
    result = ran(state, pod("urgent", 8, priority=1000), settings=with_policy(Settings(), name))
    assert placed(result)["urgent"]
    assert len(result.evictions) == 1


@pytest.mark.parametrize("name", PEERS)
def test_a_pod_that_does_not_fit_is_pending_for_the_same_reason_under_every_policy(name: str) -> None:
    nodes = (node("n", 16 * GIB),)
    [ours] = under("binpack", nodes, pod("big", 20)).waiting
    [theirs] = under(name, nodes, pod("big", 20)).waiting
    assert theirs.why == ours.why


def test_a_comparison_lists_each_policy_and_which_pods_it_leaves_pending_and_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster, file = tmp_path / "cluster.json", tmp_path / "manifests.json"
    cluster.write_bytes(snapshot_of(ClusterState((node("a", 16 * GIB, 16 * GIB),))))
    documents = [workload("Deployment", "small", 2, template(4)), pod("large", 16), pod("huge", 20)]
    file.write_text(json.dumps({"kind": "List", "items": documents}))
    arguments = ["--snapshot", str(cluster), "-f", str(file), "--compare"]
    assert main(arguments) == 3
    assert capsys.readouterr().out.partition("Policy: binpack.\n")[2].partition("\n\n")[2] == TABLE
    assert main([*arguments, "-o", "json", "--policy", "kai-spread"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert document["policy"] == "kai-spread"
    by_policy = {row["policy"]: row for row in document["compared"]}
    assert list(by_policy) == [*(placement.value for placement in Placement), *PEERS]
    spread = by_policy["hami-binpack-spread"]
    assert {key: spread[key] for key in ("placed", "allocatedMiB", "totalMiB", "gpusInUse", "gpus")} == {
        "placed": 2, "allocatedMiB": 8 * GIB, "totalMiB": 32 * GIB, "gpusInUse": 2, "gpus": 2,
    }  # fmt: skip
    assert [pending["pod"] for pending in spread["pending"]] == ["default/large", "default/huge"]
