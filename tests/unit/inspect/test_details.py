import msgspec

from gpushare.api import names
from gpushare.api.node.modes import NodeMode
from gpushare.inspect.views.allocation_model import ClusterUsage
from gpushare.inspect.views.node_details import details
from gpushare.inspect.views.nodes import summary
from tests.unit.inspect.clusters import device, first_generation, foreign_node, node, placed, pod, seen


def test_namespace_limits_the_rows_and_not_the_sums() -> None:
    gpu = device(0)
    pods = [placed("mine", "a", gpu, 1, namespace="team"), placed("theirs", "a", gpu, 4)]
    text = details(seen([node("a", "10.0.0.1", [gpu])], pods), namespace="team")
    assert "mine" in text
    assert "theirs" not in text
    assert "Allocated :  5 (33%)" in text


def test_rule_does_not_grow_with_the_number_of_pods() -> None:
    pods = [pod(f"pod-{n}", "a", 1, first_generation(0, 1)) for n in range(15)]
    lines = details(seen([foreign_node("a", "10.0.0.1", 1, 15)], pods)).splitlines()
    assert max(map(len, lines)) == 120


def test_wide_details_show_why_a_node_takes_nothing_new() -> None:
    switching = node("a", "10.0.0.1", [device(0)])
    assert switching.metadata.labels is not None
    switching.metadata.labels[names.LABEL_MODE] = NodeMode.SHARE.value
    assert "CLOSED:     node is switching from cgpu to share\n" in details(seen([switching]), wide=True)


def test_wide_details_show_what_others_hold_of_a_gpu() -> None:
    held = msgspec.structs.replace(device(0), foreign_mib=576)
    text = details(seen([node("a", "10.0.0.1", [held, device(1)])]), wide=True)
    heading, first, second = (
        line.split() for line in text.splitlines() if "Memory(MiB)" in line or "GPU-" in line
    )
    assert heading[4:6] == ["Foreign(MiB)", "Core(%)"]
    assert (first[5], second[5]) == ("576", "0")


def test_pending_compute_has_its_own_column() -> None:
    nodes = [node("a", "10.0.0.1", [device(0)], mode=NodeMode.CORE_MEM)]
    text = details(seen(nodes, [pod("p", "a", 2, core_percent=30)]))
    heading, row = text.splitlines()[3:5]
    assert heading.split("  ")[-1] == "Pending Core(%)"
    assert row.split() == ["p", "default", "0", "2", "0", "30"]


def test_gpus_keep_their_numbers_when_one_is_missing() -> None:
    cluster = seen([node("a", "10.0.0.1", [device(0), device(2)])])
    assert summary(cluster).splitlines()[1].split() == ["a", "10.0.0.1", "0/15", "0/0", "0/15", "0/30"]
    assert "GPU0(Allocated)  GPU2(Allocated)\n" in details(cluster)


def test_nothing_is_drawn_for_no_nodes() -> None:
    assert summary(ClusterUsage((), ())) == ""
    assert details(ClusterUsage((), ())) == ""
