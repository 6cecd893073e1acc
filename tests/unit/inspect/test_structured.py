import json

import msgspec
import yaml

from gpushare.api import names
from gpushare.api.node.modes import NodeMode
from gpushare.api.quantity import MemoryUnit
from gpushare.inspect.views.allocation_model import usage_of
from gpushare.inspect.views.json_output import encoded
from gpushare.inspect.views.node_details import details
from tests.unit.inspect.clusters import device, foreign_node, node, placed, pod, seen
from tests.unit.inspect.schema import faults


def test_json_contains_everything_in_the_published_schema() -> None:
    gpus = [device(0), device(1, healthy=False, reason="XID 79")]
    pods = [placed("cuda-0", "alpha", gpus[0], 2, core_percent=30), pod("new", "alpha", 1, core_percent=5)]
    cluster = seen([node("alpha", "10.0.0.1", gpus, mode=NodeMode.CORE_MEM)], pods)
    assert json.loads(encoded(cluster, "json")) == {
        "version": 1,
        "nodes": [
            {
                "name": "alpha",
                "address": "10.0.0.1",
                "mode": "core_mem",
                "unit": "1GiB",
                "closed": "",
                "memory": {"allocatedUnits": 3, "totalUnits": 30, "allocatedMiB": 2048, "totalMiB": 30720},
                "pending": {"units": 1, "corePercent": 5},
                "core": {"allocatedPercent": 35, "totalPercent": 200},
                "gpus": [
                    {
                        "index": 0,
                        "uuid": "GPU-00000000",
                        "model": "Tesla T4",
                        "healthy": True,
                        "reason": "",
                        "memory": {
                            "allocatedUnits": 2,
                            "totalUnits": 15,
                            "allocatedMiB": 2048,
                            "totalMiB": 15360,
                        },
                        "core": {"allocatedPercent": 30, "totalPercent": 100},
                    },
                    {
                        "index": 1,
                        "uuid": "GPU-00000001",
                        "model": "Tesla T4",
                        "healthy": False,
                        "reason": "XID 79",
                        "memory": {
                            "allocatedUnits": 0,
                            "totalUnits": 15,
                            "allocatedMiB": 0,
                            "totalMiB": 15360,
                        },
                        "core": {"allocatedPercent": 0, "totalPercent": 100},
                    },
                ],
                "pods": [
                    {
                        "namespace": "default",
                        "name": "cuda-0",
                        "uid": "uid-default-cuda-0",
                        "phase": "Running",
                        "shares": [
                            {"gpu": 0, "uuid": "GPU-00000000", "units": 2, "MiB": 2048, "corePercent": 30}
                        ],
                        "pending": None,
                    },
                    {
                        "namespace": "default",
                        "name": "new",
                        "uid": "uid-default-new",
                        "phase": "Running",
                        "shares": [],
                        "pending": {"units": 1, "corePercent": 5},
                    },
                ],
            }
        ],
        "cluster": {
            "memory": [{"unit": "1GiB", "allocatedUnits": 3, "totalUnits": 30, "percent": 10}],
            "core": {"allocatedPercent": 35, "totalPercent": 200},
        },
        "warnings": [],
    }


def test_yaml_contains_the_same_as_json() -> None:
    gpu = device(0, model="Größe: 'Tesla' #4")
    nodes = [node("a", "10.0.0.1", [gpu]), node("b", "10.0.0.2", [gpu], unit=MemoryUnit.MIB_128)]
    broken = pod("broken", "a", 3, {names.ANN_MEM_INDEX: "x", names.ANN_MEM_POD: "1"})
    cluster = usage_of(nodes, [placed("p", "a", gpu, 4), broken])
    assert len(cluster.warnings) == 1
    text = encoded(cluster, "yaml")
    assert yaml.safe_load(text) == json.loads(encoded(cluster, "json"))
    assert text.startswith("version: 1\nnodes:\n- name: a\n")


def test_sums_are_kept_apart_by_unit() -> None:
    gpu = device(0)
    nodes = [
        node("a", "10.0.0.1", [gpu]),
        node("b", "10.0.0.2", [gpu], unit=MemoryUnit.MIB_128),
        foreign_node("c", "10.0.0.3", 1, 15),
    ]
    pods = [placed("p", "b", gpu, 30, unit=MemoryUnit.MIB_128)]
    assert json.loads(encoded(seen(nodes, pods), "json"))["cluster"] == {
        "memory": [
            {"unit": "1GiB", "allocatedUnits": 0, "totalUnits": 30, "percent": 0},
            {"unit": "128MiB", "allocatedUnits": 30, "totalUnits": 120, "percent": 25},
        ],
        "core": None,
    }


def test_namespace_limits_the_pods_that_are_named_and_nothing_else() -> None:
    gpu = device(0)
    pods = [placed("mine", "a", gpu, 1, namespace="team"), placed("theirs", "a", gpu, 4)]
    read = json.loads(encoded(seen([node("a", "10.0.0.1", [gpu])], pods), "json", namespace="team"))
    assert [one["name"] for one in read["nodes"][0]["pods"]] == ["mine"]
    assert read["nodes"][0]["memory"]["allocatedUnits"] == 5


def test_a_cordoned_gpu_is_marked_and_keeps_its_figures() -> None:
    gpus = [device(0), device(1, healthy=False, reason="XID 79"), device(2)]
    cluster = seen(
        [node("n", "10.0.0.1", gpus, cordoned=f"0, {gpus[1].uuid}")], [placed("a", "n", gpus[0], 2)]
    )
    (one,) = json.loads(encoded(cluster, "json"))["nodes"]
    assert [gpu.get("cordoned") for gpu in one["gpus"]] == [True, True, None]
    assert one["gpus"][0]["memory"]["allocatedUnits"] == 2
    assert cluster.nodes[0].out_of_service == (
        "GPU 0 of node n is out of service: cordoned (annotation gpushare.dev/cordoned-gpus); running pods stay",
        "GPU 1 of node n is out of service: XID 79",
    )
    table = details(cluster, wide=True)
    assert "healthy, cordoned" in table
    assert "unhealthy: XID 79, cordoned" in table


def test_a_gpu_that_waits_for_its_holder_is_healthy_and_marked_so() -> None:
    why = "held whole by pod default/whole until it ends"
    cluster = seen(
        [
            node(
                "n",
                "10.0.0.1",
                [msgspec.structs.replace(device(0, healthy=False, reason=why), kept_back=True)],
            )
        ],
        [],
    )
    (one,) = json.loads(encoded(cluster, "json"))["nodes"]
    assert [(gpu["healthy"], gpu["reason"]) for gpu in one["gpus"]] == [(True, why)]
    assert cluster.nodes[0].out_of_service == (f"GPU 0 of node n is {why}",)
    assert f"healthy, {why}" in details(cluster, wide=True)


def test_a_cordoned_node_is_marked_and_keeps_its_figures() -> None:
    open_, shut = (node(name, "10.0.0.1", [device(0)]) for name in ("a", "b"))
    shut.spec.unschedulable = True
    cluster = seen([open_, shut], [placed("here", "b", device(0), 2)])
    read = json.loads(encoded(cluster, "json"))
    warning = "node b is cordoned: no new pods are placed there until `kubectl uncordon b`; running pods stay"
    assert cluster.cordoned == (warning,)
    assert [one.get("cordoned") for one in read["nodes"]] == [None, True]
    assert [one["memory"]["allocatedUnits"] for one in read["nodes"]] == [0, 2]
    assert read["warnings"] == [warning]
    assert faults(read) == []


def test_a_node_that_counts_and_accepts_no_pods_is_marked() -> None:
    gpu = device(0)
    off = node("b", "10.0.0.1", [gpu], mode=NodeMode.DEFAULT, advertised=False)
    cluster = seen([node("a", "10.0.0.1", [gpu]), off], [placed("here", "b", gpu, 2)])
    read = json.loads(encoded(cluster, "json"))
    assert [one["totalUnits"] for one in read["cluster"]["memory"]] == [30]
    why = "node shares no GPU memory (it is in mode default, label ack.node.gpu.schedule)"
    assert read["warnings"] == [f"node b is included, and accepts no new pods: {why}"]


def test_a_cordon_of_a_missing_gpu_is_reported() -> None:
    assert usage_of([node("n", "10.0.0.1", [device(0), device(1)], cordoned="1,7")], []).warnings == (
        "node n: annotation gpushare.dev/cordoned-gpus names GPU 7, which the node does not have, so nothing is cordoned; existing GPUs: 0, 1",
    )
