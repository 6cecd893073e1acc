"""Pods that may use more than their share: their columns in tables, documents and ``--why``."""

import json

import pytest

from gpushare.api import names
from gpushare.api.node.modes import NodeMode
from gpushare.api.objects import Pod
from gpushare.inspect.sources.live_usage import RealUse, Use
from gpushare.inspect.views.explain import _of_pod
from gpushare.inspect.views.json_output import encoded
from gpushare.inspect.views.node_details import details
from gpushare.inspect.views.pod_table import Row, table
from gpushare.inspect.views.pods import _record, _rows
from tests.unit.inspect.clusters import device, node, placed, seen
from tests.unit.inspect.test_views import PLAIN

GPU = device(0)


def limited(name: str, text: str) -> Pod:
    """It has 4 units of the GPU."""
    pod = placed(name, "n", GPU, 4)
    assert pod.metadata.annotations is not None
    pod.metadata.annotations[names.ANN_GPU_MEMORY_LIMIT] = text
    return pod


def rows(*pods: Pod, mode: NodeMode = NodeMode.CGPU, used_mib: float = 9000.0) -> list[Row]:
    found = seen([node("n", "10.0.0.1", [GPU], mode=mode)], pods)
    used = {("default/a", GPU.uuid): Use(used_mib, 5.0)}
    return _rows(found, RealUse(used, {}, frozenset({"n"})), None)


def test_the_table_has_a_column_of_limits_if_pods_have_one() -> None:
    assert [line.split() for line in table(rows(limited("a", "10Gi"), placed("b", "n", GPU, 4)), PLAIN)] == [
        ["NAMESPACE", "NAME", "NODE", "GPU", "ALLOC(MiB)", "LIMIT(MiB)", "USED(MiB)", "ALLOC(%)", "USED(%)"],
        ["default", "a", "n", "0", "4096", "10240", "9000", "-", "5"],
        ["default", "b", "n", "0", "4096", "-", "0", "-", "0"],
    ]
    assert "LIMIT" not in table(rows(placed("a", "n", GPU, 4)), PLAIN)[0]


@pytest.mark.parametrize(
    ("text", "mode", "mib"),
    [
        ("main=10Gi", NodeMode.CGPU, 10240),
        ("main=10Gi", NodeMode.CORE_MEM, 10240),
        ("40Gi", NodeMode.CGPU, GPU.total_mib),
        ("4Gi", NodeMode.CGPU, 0),
        ("other=10Gi", NodeMode.CGPU, 0),
        ("10", NodeMode.CGPU, 0),
        ("10Gi", NodeMode.SHARE, 0),
        ("10Gi", NodeMode.MPS, 0),
    ],
)
def test_the_limit_is_what_the_node_lets_the_pod_use(text: str, mode: NodeMode, mib: int) -> None:
    [row] = rows(limited("a", text), mode=mode)
    assert row.limit_mib == mib
    assert _record(row).get("limitMiB", 0) == mib


def test_the_document_of_nodes_has_the_limit_if_there_is_one() -> None:
    found = seen([node("n", "10.0.0.1", [GPU])], [limited("a", "10Gi"), placed("b", "n", GPU, 4)])
    [one] = json.loads(encoded(found, "json"))["nodes"]
    assert [pod["shares"][0].get("limitMiB") for pod in one["pods"]] == [10240, None]


def test_the_details_of_a_node_have_a_column_of_limits_if_pods_have_one() -> None:
    nodes, other = [node("n", "10.0.0.1", [GPU])], placed("b", "n", GPU, 4)
    lines = details(seen(nodes, [limited("a", "10Gi"), other])).splitlines()
    assert [line.split()[-1] for line in lines if line.startswith(("NAME ", "a ", "b "))] == [
        "LIMIT(MiB)",
        "10240",
        "-",
    ]
    assert "LIMIT" not in details(seen(nodes, [other]))


def test_why_shows_the_limit_next_to_the_request() -> None:
    pod = {
        "metadata": {
            "namespace": "default",
            "name": "a",
            "uid": "u",
            "annotations": {names.ANN_GPU_MEMORY_LIMIT: "10Gi"},
        },
        "spec": {"nodeName": "n"},
        "status": {"phase": "Running"},
    }
    assert _of_pod(pod, None, PLAIN)[1:] == ["may use:  10Gi of GPU memory, while the GPU has it free"]
    decision = {"asks": "aliyun.com/gpu-mem: 4", "waiting": None}
    assert [line.split()[:2] for line in _of_pod(pod, decision, PLAIN)[1:]] == [
        ["requests:", "aliyun.com/gpu-mem:"],
        ["may", "use:"],
    ]
